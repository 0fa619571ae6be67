"""Rows by raw SQL behind Starlette and uvicorn. Usage: DATABASE PORT READS, a JSON file of `Read`s with answers."""

import asyncio
import json
import sqlite3
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from service.http.connections import IDLE_SECONDS

Select = Callable[[str, Sequence[str]], Awaitable[list[Any]]]
_CONNECTIONS = 8


def sqlite_select(path: str) -> Select:
    """Read on the event loop: a read of SQLite waits for nothing, and a hop to a thread takes longer."""
    connection = sqlite3.connect(path, isolation_level=None)

    async def select(query: str, values: Sequence[str]) -> list[Any]:
        return connection.execute(query, values).fetchall()

    return select


def postgres_select(url: str) -> Select:
    """Read over a few connections that are opened once."""
    free: asyncio.Queue[psycopg.AsyncConnection[Any]] = asyncio.Queue()
    opening = asyncio.Semaphore(_CONNECTIONS)

    async def select(query: str, values: Sequence[str]) -> list[Any]:
        if free.empty() and not opening.locked():
            await opening.acquire()
            connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
        else:
            connection = await free.get()
        try:
            return await (await connection.execute(query.replace("?", "%s"), values)).fetchall()
        finally:
            free.put_nowait(connection)

    return select


def endpoint(select: Select, read: dict[str, Any]) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that reads the rows, and the file if there is one, and answers as the service does."""

    async def answer(_: Request) -> Response:
        for query in read["queries"]:
            await select(query, read["values"])
        if read["file"]:
            Path(read["file"]).read_bytes().splitlines()  # noqa: ASYNC240 - from the page cache, like SQLite's pages
        return JSONResponse(read["answer"])

    return answer


def main() -> None:
    """Serve until killed."""
    _, database, port, reads = sys.argv
    select = postgres_select(database) if database.startswith("postgres") else sqlite_select(database)

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    queries = json.loads(Path(reads).read_text("utf-8"))
    routes = [Route(f"/{number}", endpoint(select, query)) for number, query in enumerate(queries)]
    uvicorn.run(
        Starlette(routes=[Route("/health", health), *routes]),
        host="127.0.0.1",
        port=int(port),
        access_log=False,
        log_config=None,
        lifespan="off",
        timeout_keep_alive=IDLE_SECONDS,
    )


if __name__ == "__main__":
    main()
