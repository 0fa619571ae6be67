from typing import Annotated
from urllib.parse import unquote_to_bytes

from fastapi import Depends, Request
from starlette.convertors import PathConvertor, register_url_convertor

from core.errors import SpecInvalid


class _FileConvertor(PathConvertor):
    """Matches every character: file names may contain line breaks, where Starlette's `path` ends."""

    regex = r"[\s\S]*"


FILE = "file"  # name of the convertor, for route parameters that are paths of files
register_url_convertor(FILE, _FileConvertor())


async def _read_file_path(request: Request, path: str) -> str:
    # The server decodes every wrong byte as U+FFFD, so that the paths of several files would be the same.
    try:
        unquote_to_bytes(request.scope["raw_path"]).decode()
    except UnicodeDecodeError as error:
        byte = f"{error.object[error.start]:02X}"
        raise SpecInvalid(
            f"path: the byte %{byte} is not UTF-8. Encode the path as UTF-8; for a file whose name has this byte, send "
            f"%25{byte}.",
            field="path",
        ) from None
    return path


FilePath = Annotated[str, Depends(_read_file_path)]  # the parameter `path` of a route, refused if it is not UTF-8
