"""One training: devices, input, optimization, and the loop that combines them."""
