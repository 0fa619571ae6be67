"""The pages of one job: overview, log, configuration, events, and the difference from another job."""
