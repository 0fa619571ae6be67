from functools import cache

from uv import find_uv_bin


@cache
def uv_program() -> str:
    """Return its path; finding it takes 1.5 ms, and every job needs it."""
    return find_uv_bin()
