"""Exec sessions: from a client's WebSocket to the worker of the job."""
