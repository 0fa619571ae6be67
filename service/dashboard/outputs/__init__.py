"""Pages of what a job produced: its metrics and its artifacts."""
