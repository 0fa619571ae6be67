"""Options of the client that choose a job's packages."""

import pytest

BASICS = ("--machineType", "CPU", "--command", "python main.py")


def spec_of(server):
    return server.requests_to("POST", "/jobs")[-1].json


@pytest.fixture
def main_py(cli):
    (cli.folder / "main.py").write_text("print('hello')\n")


@pytest.mark.usefixtures("main_py")
def test_requirements_are_chosen_by_options(cli, server, protocol):
    server.on("POST", "/jobs", {"job": {}}, protocol.job())
    (cli.folder / "more").mkdir()
    (cli.folder / "more" / "gpu.txt").write_text("six\n")
    words = ["--with", "torch>=2,<3, tqdm", "--with", "x[a,b]", "--extra", "e", "--group", "g"]
    assert (
        cli(
            "jobs",
            "create",
            *BASICS,
            "--detach",
            *words,
            "--requirements",
            "gpu.txt",
            "--workspace",
            "..",
            cwd=cli.folder / "more",
        ).returncode
        == 0
    )
    chosen = {"packages": ["torch>=2,<3", "tqdm", "x[a,b]"], "extras": ["e"], "groups": ["g"]}
    spec = spec_of(server)
    assert {name: spec[name] for name in chosen} == chosen
    assert spec["requirementsFile"] == "more/gpu.txt"


def test_a_requirements_file_outside_of_the_workspace_is_sent_as_its_lines(cli, server, protocol):
    server.on("POST", "/jobs", {"job": {}}, protocol.job())
    (cli.folder / "app").mkdir()
    (cli.folder / "app" / "main.py").touch()
    outside = cli.folder / "requirements.txt"
    outside.write_bytes("six  # of all\r\n-r base.txt\r\n".encode("utf-16"))
    (cli.folder / "base.txt").write_text("tqdm\n--extra-index-url https://example.org\n")
    create = ("jobs", "create", *BASICS, "--detach", "--requirements", "../requirements.txt", "--with", "numpy")
    assert cli(*create, cwd=cli.folder / "app").returncode == 0
    spec = spec_of(server)
    assert spec["packages"] == ["six", "tqdm", "--extra-index-url https://example.org", "numpy"]
    assert "requirementsFile" not in spec
    for text in ("-e .\n", "-c limits.txt\n", "-r requirements.txt\n", "-r absent.txt\n"):
        outside.write_text(text)
        refused = cli(*create, cwd=cli.folder / "app")
        assert (
            refused.returncode,
            "outside the workspace" in refused.stderr or "cannot be read" in refused.stderr,
        ) == (2, True)
    (cli.folder / "app" / ".gradient.toml").write_text('requirements = "../requirements.txt"\n')
    refused = cli("jobs", "create", *BASICS, "--detach", cwd=cli.folder / "app")
    assert (refused.returncode, "outside the file's folder" in refused.stderr) == (2, True)
