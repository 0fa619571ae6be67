"""Units of sizes."""

GIB = 1024**3
