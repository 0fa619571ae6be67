"""Exec sessions: users' commands, shells and port connections in running jobs."""
