"""The least that serves HTTP with the same libraries: one path, no database. Run as a program: `hello.py PORT`."""

import sys

import uvicorn
from fastapi import FastAPI

app = FastAPI()


@app.get("/health")
async def health() -> dict[str, str]:
    """Say that it serves."""
    return {"status": "ok"}


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")
