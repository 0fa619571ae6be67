"""The TensorBoards that this process has started: their visitors, their number, and their end when nobody uses them."""

import asyncio
import logging
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from core.errors import LimitReached
from core.settings import Settings
from service.tensorboard.board import TOKEN_BYTES, Board, Visitor
from service.tensorboard.board_process import BoardProcess, sandbox_problem
from service.tensorboard.listener import Listener

logger = logging.getLogger(__name__)

_IN_USE_SECONDS = 60.0
_IDLE_SECONDS = 900.0
_MAX_BOARDS = 4  # each may use 2 GiB of memory
_CHECK_SECONDS = 1.0


class Boards:
    """The boards of one process. Everything happens in the event loop."""

    def __init__(
        self, settings: Settings, *, idle_seconds: float = _IDLE_SECONDS, max_boards: int = _MAX_BOARDS
    ) -> None:
        self._settings = settings
        self._idle_seconds, self._max_boards = idle_seconds, max_boards
        self._listener = Listener(settings, self.get)
        self._opening = asyncio.Lock()
        self._boards: dict[str, Board] = {}
        self._watching: asyncio.Task[None] | None = None

    def get(self, board_id: str) -> Board | None:
        """Return an open board; None if there is none of this id."""
        return self._boards.get(board_id)

    async def open(self, folders: Mapping[str, Path], visitor: Visitor) -> str:
        """Open a board for these folders, or the one that is open already; return a link that works once."""
        async with self._opening:
            await asyncio.to_thread(sandbox_problem)  # its first call tries bubblewrap
            await self._listener.start()
            board = next((board for board in self._boards.values() if board.folders == folders), None)
            if board is None or board.process.has_ended():
                board = self._start(folders)
            if self._watching is None:
                self._watching = asyncio.create_task(self._watch())
        board.used_at = time.monotonic()
        return f"{self._listener.url}/{board.id}/?ticket={board.issue_ticket(visitor)}"

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching
        for board in list(self._boards.values()):
            self._end(board, "closed")
        await self._listener.close()

    def _start(self, folders: Mapping[str, Path]) -> Board:
        self._end_unused()
        board_id = secrets.token_urlsafe(TOKEN_BYTES)
        if len(self._boards) >= self._max_boards:
            oldest = min(self._boards.values(), key=lambda board: board.used_at)
            wait = oldest.used_at + min(_IN_USE_SECONDS, self._idle_seconds) - time.monotonic()
            if wait > 0:
                raise LimitReached(
                    f"{self._max_boards} TensorBoards are in use, which is the limit of this server.", wait
                )
            self._end(oldest, "replaced")
        board = Board(board_id, dict(folders), BoardProcess(folders, f"/{board_id}", self._settings.process))
        self._boards[board_id] = board
        logger.info("tensorboard_started", extra={"runs": len(folders), "pid": board.process.pid})
        return board

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(min(_CHECK_SECONDS, self._idle_seconds / 4))
            self._end_unused()

    def _end_unused(self) -> None:
        for board in list(self._boards.values()):
            if board.process.has_ended():
                self._end(board, "failed", error=board.process.problem())
            elif time.monotonic() - board.used_at > self._idle_seconds:
                self._end(board, "idle")

    def _end(self, board: Board, reason: str, **fields: str) -> None:
        del self._boards[board.id]
        logger.info("tensorboard_ended", extra={"pid": board.process.pid, "reason": reason} | fields)
        board.process.close()
