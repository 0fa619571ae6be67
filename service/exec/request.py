import asyncio
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from starlette.websockets import WebSocket

from core.errors import SpecInvalid

_REQUEST_SECONDS = 10.0
_MAX_COMMAND_BYTES = 128 * 1024

_Size = Annotated[int, Field(ge=1, le=10_000)]


class ExecTerminal(BaseModel):
    model_config = ConfigDict(extra="forbid")

    rows: _Size
    columns: _Size
    term: str = Field(default="xterm", pattern=r"^[A-Za-z0-9._+-]{1,64}$")


class ExecCommand(BaseModel):
    """The command, and the terminal that it gets; without one it gets three pipes."""

    model_config = ConfigDict(extra="forbid")

    command: list[str] = Field(min_length=1, max_length=10_000)
    terminal: ExecTerminal | None = None

    @field_validator("command")
    @classmethod
    def _is_passable(cls, command: list[str]) -> list[str]:
        if not command[0]:
            raise ValueError("the program has no name")
        if any("\0" in word for word in command):
            raise ValueError("a word contains a NUL character")
        if sum(len(word.encode()) + 1 for word in command) > _MAX_COMMAND_BYTES:
            raise ValueError(f"it is longer than {_MAX_COMMAND_BYTES // 1024} KiB; put it into a script")
        return command


async def read_command(websocket: WebSocket) -> ExecCommand:
    """Read the first message of a session. Raises `WebSocketDisconnect`: the client is gone."""
    try:
        async with asyncio.timeout(_REQUEST_SECONDS):
            text = await websocket.receive_text()
        return ExecCommand.model_validate_json(text)
    except TimeoutError as error:
        raise SpecInvalid(f"No command came within {_REQUEST_SECONDS:.0f} seconds.", field="command") from error
    except KeyError as error:
        raise SpecInvalid("The first message must be text: the command as JSON.", field="command") from error
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise SpecInvalid(f"{field or 'The command'}: {first['msg'].removeprefix('Value error, ')}.") from error


def parse_port(text: str | None) -> int:
    if text is None or not (text.isascii() and text.isdecimal()) or not 1 <= int(text[:6]) <= 65535:  # noqa: PLR2004
        raise SpecInvalid(f"port: a number from 1 to 65535, not {text!r:.40}.", field="port")
    return int(text)
