"""Python SDK of Gradient Jobs: submit, follow and stop jobs; run functions as jobs; log metrics inside jobs."""

from __future__ import annotations

from gradient_cli.errors import ClientError, ConnectionFailed, ServerError, TimedOut, UsageError
from gradient_jobs.client import Client, Job
from gradient_jobs.errors import LibraryMissing
from gradient_jobs.metrics import log, log_params, watch_input
from gradient_jobs.records import Artifact, JobFailed, LogLine, Prediction, ResultNotLoaded
from gradient_jobs.remote import RemoteCall, RemoteFunction, RemoteTraceback, remote
from gradient_jobs.sweeps import Sweep, Trial
from gradient_jobs.watch import watch

__all__ = [
    "Artifact",
    "Client",
    "ClientError",
    "ConnectionFailed",
    "Job",
    "JobFailed",
    "LibraryMissing",
    "LogLine",
    "Prediction",
    "RemoteCall",
    "RemoteFunction",
    "RemoteTraceback",
    "ResultNotLoaded",
    "ServerError",
    "Sweep",
    "TimedOut",
    "Trial",
    "UsageError",
    "__version__",
    "log",
    "log_params",
    "remote",
    "watch",
    "watch_input",
]

__version__ = "0.1.0"
