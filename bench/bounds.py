"""The goals: bounds of what `python -m bench` measures."""

ABUSE = 2.0
"""P99 of requests during abuse, times an idle service."""
ARTIFACT_CLOSE = 0.8
"""Closing a file of outputs, of the rate of sha256."""
BIG_TABLE_READ = 50.0
"""Slowest read with a million jobs, ms, p50."""
BIG_TABLE_START = 1.0
"""Start of the API with a million jobs, seconds."""
BIG_TABLE_JOB = 1.1
"""A job with a million others, times an empty table."""
BROWSER_LIST_MS = 200.0
"""List of 50 jobs, to `load`."""
BROWSER_LOG_MS = 300.0
"""Page of a long log, to its first rows."""
BROWSER_LOG_LINE_MS = 100.0
"""To any line of it."""
BROWSER_LOG_SEARCH_MS = 1000.0
"""A search in it."""
BROWSER_LOG_NODES = 300.0
"""Nodes of the log."""
BROWSER_LOG_BEHIND_MS = 1000.0
"""End of a job that prints much, to its last line."""
BROWSER_LOG_TASK_MS = 100.0
"""Longest task while the log is followed."""
BROWSER_CHARTS_MS = 150.0
"""12 charts, drawn."""
BROWSER_TAB_MS = 1000.0
"""The last of many tabs, to its log."""
BROWSER_RUNS_MS = 500.0
"""Workspace of 200 runs, to its first curves."""
BROWSER_HOVER_MS = 32.0
"""A move of the mouse over a chart, to the values of all runs there, p99."""
BROWSER_SCRIPTS_KB = 80.0
"""All scripts, gzipped."""
CLAIM_P99_MS = 100.0
"""A claim with 100 hosts and 100,000 queued jobs, p99."""
CLI_HELP = 3.0
"""Times `python -c pass`."""
CLI_LIST = 6.0
"""Times `python -c pass`."""
CONTAINER_FIRST_LINE = 1.15
"""Times the Docker SDK."""
DOWNLOAD_SMALL = 0.5
"""Of the rate of `cp -r`."""
DOWNLOAD_LARGE = 0.8
"""Of the rate of a plain HTTP server."""
FIRST_LINE = 1.5
"""Times the same program run directly."""
FOLLOWED_CALLS = 2.0
"""P99 of other calls beside followers of logs, times without."""
IDLE_MEMORY_MIB = 120.0
"""PSS."""
BUSY_MEMORY_MIB = 250.0
"""PSS with 500 running jobs."""
MEMBERS_RATE = 100.0
"""Members of an array per second."""
MEMBERS_TIME = 1.3
"""Of the time of a bare pool of processes."""
SWEEP_TIME = 1.5
"""Of the time of a bare pool of processes that runs the same trials."""
JOBS_RATE = 0.15
"""Jobs per second, of `bash -c true`, one after the other."""
LINE_P50_MS = 20.0
"""Line printed, read."""
LINE_P99_MS = 150.0
"""Line printed, read."""
LOG_MB_PER_S = 200.0
"""Printed by a job and stored."""
PREDICTION_ERROR = 0.15
"""Error of a prediction, as a share."""
READ_RATE = 0.5
"""Reads per second, of the same rows by raw SQL behind the same stack."""
READ_RATE_ONE_JOB = 1000.0
"""Reads of one job per second, of one process."""
READ_FLAT = 0.8
"""Reads per second with 512 connections, of those with 16."""
READ_P99 = 4.0
"""P99 of a read, times connections / reads per second."""
REFUSAL_SHARE = 0.25
"""Of the interquartile range, between two refusals."""
REUPLOAD_SECONDS = 1.0
"""One file of 10,000 changed, submitted."""
REUPLOAD_PERCENT = 1.0
"""Bytes sent, of the folder."""
SLURM = 1.2
"""Jobs on a Slurm cluster, times the same by sbatch alone."""
START_SECONDS = 2.0
"""Start of the API."""
START_CPU = 3.0
"""CPU of a start, times a bare FastAPI application."""
SUBMIT = 2.0
"""P50 of a submission, times the raw insert."""
SUBMIT_RATE = 0.5
"""Submissions per second, of group commit behind the same stack."""
SUBMIT_RATE_16 = 500.0
"""Submissions per second with 16 clients."""
TRAINER_LINK = 5.0
"""Pace behind a slow network, times that with a message for each step."""
TRAINER_PACE = 0.98
"""Of the steps per second of `model.fit`."""
