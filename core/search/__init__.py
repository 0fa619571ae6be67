"""The query language of lists of jobs: its text, its SQL conditions and its orders."""
