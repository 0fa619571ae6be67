"""The Cloud Storage bucket that a TPU job uses: created, restricted, filled, downloaded and emptied."""
