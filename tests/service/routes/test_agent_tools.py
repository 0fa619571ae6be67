"""`/mcp` without its library; tests/e2e/test_mcp.py has conversations."""

import sys

from service.routes.server import agent_tools


def test_without_the_library_the_route_says_what_to_install(client, monkeypatch):
    monkeypatch.setitem(sys.modules, "gradient_jobs.agent_tools", None)
    agent_tools._load.cache_clear()
    refused = client.post("/mcp", json={})
    assert refused.status_code == 503
    assert "pip install 'gradient-jobs[mcp]'" in refused.json()["error"]["message"]
