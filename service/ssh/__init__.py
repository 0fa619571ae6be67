"""The ssh endpoint: users enter running jobs with the programs of OpenSSH."""
