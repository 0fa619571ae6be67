def say(line: str) -> None:
    """Print a line and flush it, so that it appears at once even through a pipe."""
    print(line, flush=True)
