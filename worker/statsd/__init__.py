"""DogStatsD for jobs on this host that send metrics with `gradient-statsd`, each to its own metrics only.

The job that a datagram names (`container_name:JOB`) is accepted only if its sender is that job: `sender_lookup.py` asks
the kernel, `container_sender_lookup.py` the container engine. Accepted values go into the job's metrics file, like
those it writes itself.
"""
