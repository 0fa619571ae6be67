"""Everything that a training writes: checkpoints, metrics, result, and their copies in Cloud Storage."""
