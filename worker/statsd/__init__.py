"""DogStatsD on this host, for jobs that send metrics by `gradient-statsd`: into their own metrics, never others'.

What a datagram says of itself (`container_name:JOB`) is believed only if its sender is that job: `senders.py` asks the
kernel or the container engine who sent it. Accepted values go into the job's metrics file, like those it writes itself.
"""
