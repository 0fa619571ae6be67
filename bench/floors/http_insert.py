"""The service's HTTP stack with nothing but the insert. Usage: DATABASE PORT each|group."""

import asyncio
import queue
import sqlite3
import sys
import threading
from collections.abc import Awaitable, Callable

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from bench.floors.inserts import connect, insert
from service.http.connections import IDLE_SECONDS

Answer = Callable[[str], Awaitable[str]]


def commit_each(path: str) -> Answer:
    """Use a transaction for each request, in the thread pool, as the service's endpoints do."""
    local = threading.local()

    def write(spec: str) -> str:
        connection: sqlite3.Connection | None = getattr(local, "connection", None)
        if connection is None:
            connection = local.connection = connect(path)
        return insert(connection, [spec])[0]

    async def answer(spec: str) -> str:
        return await run_in_threadpool(write, spec)

    return answer


def commit_group(path: str) -> Answer:
    """Use one writer that puts all waiting requests into one transaction."""
    waiting: queue.SimpleQueue[tuple[str, asyncio.Future[str]]] = queue.SimpleQueue()

    def write() -> None:
        connection = connect(path)
        while True:
            batch = [waiting.get()]
            while not waiting.empty():
                batch.append(waiting.get())
            ids = insert(connection, [spec for spec, _ in batch])
            batch[0][1].get_loop().call_soon_threadsafe(tell, batch, ids)

    def tell(batch: list[tuple[str, asyncio.Future[str]]], ids: list[str]) -> None:
        for (_, future), job_id in zip(batch, ids, strict=True):
            if not future.done():
                future.set_result(job_id)

    threading.Thread(target=write, daemon=True).start()

    async def answer(spec: str) -> str:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        waiting.put((spec, future))
        return await future

    return answer


def main() -> None:
    """Serve until killed."""
    _, path, port, commit = sys.argv
    answer = commit_each(path) if commit == "each" else commit_group(path)

    async def jobs(request: Request) -> Response:
        return JSONResponse({"id": await answer((await request.body()).decode())}, 201)

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    app = Starlette(routes=[Route("/jobs", jobs, methods=["POST"]), Route("/health", health)])
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=int(port),
        access_log=False,
        log_config=None,
        lifespan="off",
        timeout_keep_alive=IDLE_SECONDS,
    )


if __name__ == "__main__":
    main()
