"""A project file of somebody else's repository uploads nothing of the user's but the folder that it lies in."""

import json
import os
import pty
import tarfile

import pytest

SECRET = "TOP SECRET OF THE USER"


def uploaded_names(server):
    """Return the names of the files and links in the last uploaded folder."""
    manifest = json.loads([one for one in server.requests if one.method == "PUT"][-1].parts["manifest"].get_payload())
    return {name for name, *_ in [*manifest["files"], *manifest["links"]]}


@pytest.fixture
def repository(cli, server, protocol):
    """A cloned repository, beside the user's credentials, and a server that takes everything."""
    (cli.home / ".cfg").mkdir()
    (cli.home / ".cfg" / "credentials.txt").write_text(SECRET)
    with tarfile.open(cli.home / "backup.tar.gz", "w:gz") as archive:
        archive.add(cli.home / ".cfg", "cfg")
    (cli.folder / "code").mkdir()
    (cli.folder / "code" / "main.py").write_text("print(1)\n")
    (cli.folder / "link").symlink_to(cli.home / ".cfg")
    (cli.folder / "backup.tar.gz").symlink_to(cli.home / "backup.tar.gz")
    # The answer to a dry run, too, which is what comes before an upload.
    server.on("POST", "/jobs", protocol.Reply({"job": {}, **protocol.job()}, 201))

    def write(text):
        (cli.folder / ".gradient.toml").write_text(f'machineType = "CPU"\n{text}\n')

    return write


@pytest.mark.parametrize(
    "inside", ["link", "backup.tar.gz", "code/../link", "link/../.cfg", "~/.cfg", "absolute", ".."]
)
@pytest.mark.parametrize(
    "command",
    [
        ("jobs", "create", "--command", "cat credentials.txt"),
        ("jobs", "create", "--command", "cat credentials.txt", "--dry-run"),
        ("jobs", "run", "credentials.py"),
        ("notebooks", "run"),
        ("compare", "create", "-m", "CPU,V100", "--command", "x"),
        ("run", "jobs.toml"),
    ],
)
def test_no_command_uploads_what_is_outside_of_the_folder(cli, server, repository, inside, command):
    (cli.home / ".cfg" / "credentials.py").write_text(SECRET)
    (cli.folder / "jobs.toml").write_text('[[jobs]]\nname = "a"\ncommand = "cat credentials.txt"\n')
    path = {"absolute": str(cli.home / ".cfg")}.get(inside, inside)
    repository(f'workspace = "{path}"')
    refused = cli(*command)
    assert refused.returncode == 2, refused.stderr
    assert "is outside the file's folder" in refused.stderr
    real = os.path.realpath(cli.folder / path.replace("~", str(cli.home)))
    assert f"--workspace {real}" in refused.stderr
    assert server.requests == []


def test_what_lies_in_the_folder_and_what_the_user_names_is_uploaded_and_named(cli, server, repository):
    repository('workspace = "code"')
    made = cli("jobs", "create", "--command", "x", "--detach", cwd=cli.folder / "code")
    assert made.returncode == 0, made.stderr
    assert f": {cli.folder}/code\n" in made.stderr
    repository(f'workspace = "{cli.home}/.cfg"')
    made = cli("jobs", "create", "--command", "x", "--detach", "--workspace", cli.home / ".cfg")
    assert made.returncode == 0
    assert f": {cli.home}/.cfg\n" in made.stderr
    assert uploaded_names(server) == {"credentials.txt"}


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("\n", 2)])
def test_on_a_terminal_it_is_asked_for_once_by_its_real_path(cli, server, repository, answer, code):
    repository('workspace = "link"')
    (cli.home / ".cfg" / "run.py").write_text("print(1)\n")
    leader, terminal = pty.openpty()
    os.write(leader, answer.encode())
    with cli.start("jobs", "run", "--detach", "link/run.py", stdin=terminal) as process:
        _, told = process.communicate(timeout=30)
    os.close(leader)
    os.close(terminal)
    assert process.returncode == code, told
    assert told.count(f"uploads {cli.home}/.cfg, which is outside its folder. Allow this?") == 1
    assert bool(server.requests_to("POST", "/jobs")) == (code == 0)


def test_it_gets_no_variable_of_the_environment(cli, server, repository):
    repository('command = "env"\nworkspace = "none"\nenvVars = ["LR=1", "AWS_SECRET_ACCESS_KEY"]')
    given = {"AWS_SECRET_ACCESS_KEY": SECRET}
    refused = cli("jobs", "create", "--detach", env=given)
    assert refused.returncode == 2
    assert "gets none of your environment" in refused.stderr
    assert server.requests == []
    repository('command = "env"\nworkspace = "none"\nenvVars = ["LR=1"]')
    assert cli("jobs", "create", "--detach", "--envVars", "AWS_SECRET_ACCESS_KEY", env=given).returncode == 0
    assert server.requests[-1].json["envVars"] == {"LR": "1", "AWS_SECRET_ACCESS_KEY": SECRET}


def test_a_link_in_the_folder_that_leads_out_of_it_is_left_out(cli, server, repository):
    repository('workspace = "."')
    made = cli("jobs", "create", "--command", "x", "--detach")
    assert "a link that leaves the folder" in made.stderr
    assert not {"link", "backup.tar.gz"} & uploaded_names(server)
