"""Runs jobs on a TPU VM itself: the runner on the VM, and its follower here, communicate only through the bucket."""
