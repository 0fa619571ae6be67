"""TensorBoard for jobs: a process for each selection, in a sandbox, behind an address that is not the dashboard's."""
