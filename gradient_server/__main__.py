"""The program `gradient-server`: names the extra to install where its libraries are missing."""

import sys

from core.system import garbage_collection


def main() -> int:
    """Run one command and return the exit code."""
    try:
        with garbage_collection.paused():
            from gradient_server import main as commands
    except ModuleNotFoundError as error:
        print(
            f"error: gradient-server needs {error.name}, which is not installed.\n"
            "Run `pip install 'gradient-jobs[server]'`; gradient-jobs alone is only the client.",
            file=sys.stderr,
        )
        return 1
    return commands.main()


if __name__ == "__main__":
    sys.exit(main())
