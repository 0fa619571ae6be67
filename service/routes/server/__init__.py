"""Routes of the server itself: its health, its numbers for Prometheus, and the client that it offers."""
