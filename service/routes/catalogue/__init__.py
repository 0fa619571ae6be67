"""Routes of what a job can choose from: machine types, and short names of images."""
