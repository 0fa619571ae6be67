"""Paths of files in URLs."""

from starlette.convertors import PathConvertor, register_url_convertor


class _FileConvertor(PathConvertor):
    """Matches every character: file names may contain line breaks, where Starlette's `path` ends."""

    regex = r"[\s\S]*"


FILE = "file"
"""Name of the convertor, for route parameters that are paths of files."""
register_url_convertor(FILE, _FileConvertor())
