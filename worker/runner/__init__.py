"""Code that runs beside a job. It needs only Python 3.9 and its standard library, so it also runs on a TPU VM."""
