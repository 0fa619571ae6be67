"""Measurement of a training: its pace, its memory, and the work of a step."""
