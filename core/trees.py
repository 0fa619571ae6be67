"""Folders as a whole."""

import shutil
from pathlib import Path


def remove_tree(folder: Path) -> None:
    """Removes a folder with all that is in it, also while others remove it as well; removing the missing is success.

    Raises:
        OSError: Something in it cannot be removed.
    """
    while True:
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            # Either it is gone, or something in it went before we came to it: then the rest is still there.
            if folder.exists():
                continue
        return
