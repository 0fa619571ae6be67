"""Pages with forms: a new job, and the settings; and the page of one project."""
