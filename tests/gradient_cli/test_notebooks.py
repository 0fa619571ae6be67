"""`notebooks run` against a scripted server."""


def test_a_notebook_is_the_last_job_of_its_folder(cli, server, protocol):
    ended = protocol.job(state="Failed", exitCode=5, finishedAt="2026-01-01T00:00:00.000Z")
    server.on("POST", "/jobs", protocol.job())
    server.on("GET", f"/jobs/{protocol.id}", ended)
    server.on("GET", f"/jobs/{protocol.id}/artifacts", {"files": [], "totalFiles": 0, "totalBytes": 0, "next": None})
    assert cli("notebooks", "run", "--workspace", "none", "-m", "CPU").returncode == 5
    assert f"job {protocol.id} (the last one from this folder)" in cli("jobs", "show").stderr


def test_the_ports_of_the_project_file_are_published_too(cli, server, protocol):
    server.on("POST", "/jobs", protocol.job())
    (cli.folder / ".gradient.toml").write_text('ports = ["6006"]\n')
    notebook = ("notebooks", "run", "--workspace", "none", "-m", "CPU", "--detach")
    assert cli(*notebook).returncode == 0
    assert server.requests[-1].json["ports"] == ["6006", "8888"]
    assert cli(*notebook, "--ports", "8888").returncode == 0
    assert server.requests[-1].json["ports"] == ["8888"]
