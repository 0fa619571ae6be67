def say(line: str) -> None:
    """Print a line that is seen at once, also through a pipe."""
    print(line, flush=True)
