"""DogStatsD for jobs on this host that send metrics with `gradient-statsd`, each to its own metrics only.

A process sends to a socket that is only its attempt's, in its own network where it has one. Containers send to the
host's end of their network, and are known by their address (`container_sender_lookup.py`). A value that names another
job (`container_name:JOB`) is dropped. Accepted values go into the job's metrics file, like those it writes itself.
"""
