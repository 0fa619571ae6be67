"""The pages of the whole service: now, the list of jobs, and the machines."""
