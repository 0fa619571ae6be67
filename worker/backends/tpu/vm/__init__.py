"""Jobs on a TPU VM itself: what runs there, and what follows it from here. They meet in the bucket alone."""
