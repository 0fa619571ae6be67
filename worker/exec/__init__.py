"""Exec sessions in the jobs of this worker."""
