"""The minimal HTTP server with the same libraries: one path, no database. Usage: `http_hello.py PORT`."""

import sys

import uvicorn
from fastapi import FastAPI

app = FastAPI()


@app.get("/health")
async def health() -> dict[str, str]:
    """Answer that the server is up."""
    return {"status": "ok"}


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")
