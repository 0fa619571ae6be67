"""Secrets, registries and ports as the client takes them: no value on a command line, none on a screen."""

import contextlib
import json
import os
import pty
import select

import pytest

VALUE = "canary-of-the-client"
SECRET = {"name": "wandb", "projectId": None, "createdAt": None, "updatedAt": None}


def shown(done):
    return done.stdout + done.stderr


def test_a_secret_comes_from_a_pipe_without_its_last_lines_end(cli, server):
    server.on("PUT", "/secrets/wandb", SECRET)
    done = cli("secrets", "set", "wandb", given=f"{VALUE}\n\n")
    assert done.returncode == 0, done.stderr
    assert server.requests_to("PUT", "/secrets/wandb")[0].json == {"value": f"{VALUE}\n"}
    assert VALUE not in shown(done)
    assert "secret:wandb" in done.stderr


def test_a_secret_comes_from_a_file_as_it_is_for_one_project(cli, server):
    (cli.folder / "key.pem").write_text(f"{VALUE}\n")
    server.on("GET", "/projects", {"projects": [{"id": "pr1", "name": "vision"}]})
    server.on("PUT", "/projects/pr1/secrets/key", SECRET | {"name": "key"})
    done = cli("secrets", "set", "key", "--from-file", "key.pem", "--project", "vision", "--json")
    assert json.loads(done.stdout)["name"] == "key"
    assert server.requests_to("PUT", "/projects/pr1/secrets/key")[0].json == {"value": f"{VALUE}\n"}
    assert VALUE not in shown(done)


def test_a_secret_that_is_typed_is_not_seen(cli, server):
    server.on("PUT", "/secrets/wandb", SECRET)
    master, slave = pty.openpty()
    with cli.start("secrets", "set", "wandb", stdin=slave, start_new_session=True) as process:
        os.close(slave)
        waiting = select.poll()  # `select` takes no descriptor above 1,023
        waiting.register(process.stderr, select.POLLIN)
        assert waiting.poll(30_000)
        assert os.read(process.stderr.fileno(), 100) == b"Value of wandb: "
        os.write(master, f"{VALUE}\n".encode())
        out, err = process.communicate(timeout=30)
    echoed = b""
    with contextlib.suppress(OSError):  # nobody has the other end any more
        while piece := os.read(master, 1000):
            echoed += piece
    os.close(master)
    assert process.returncode == 0, err
    assert server.requests_to("PUT", "/secrets/wandb")[0].json == {"value": VALUE}
    assert VALUE not in out + err + echoed.decode()


@pytest.mark.parametrize(
    ("arguments", "given", "says"),
    [
        (["secrets", "set", "a"], "", "value: empty"),
        (["secrets", "set", "a", "--value", VALUE], None, "unknown option --value"),
        (["secrets", "set"], None, "NAME"),
        (["secrets", "set", "a", "--from-file", "none"], None, "none"),
        (["registries", "set", "ghcr.io"], VALUE, "username"),
        (["jobs", "create", "--command", "x", "--registryPassword", VALUE], None, "can read command lines"),
        (["jobs", "create", "--command", "x", "--registryPassword", "-"], VALUE, "registryUsername"),
    ],
)
def test_what_is_wrong_is_said_without_the_value(cli, server, arguments, given, says):
    done = cli(*arguments, given=given)
    assert done.returncode in {1, 2}
    assert says in done.stderr
    assert VALUE not in done.stderr
    assert server.requests == []


def test_secrets_are_listed_and_deleted_by_name(cli, server):
    server.on("GET", "/secrets", {"secrets": [SECRET]})
    server.on("DELETE", "/secrets/wandb", {})
    assert cli("secrets", "list").stdout.splitlines()[-1].split() == ["wandb"]
    assert cli("secrets", "delete", "wandb").returncode == 0
    server.on("GET", "/secrets", {"secrets": []})
    assert "secrets set NAME" in cli("secrets", "list").stderr


def test_a_registry_is_set_listed_and_deleted(cli, server):
    registry = {"host": "localhost:5000", "username": "alice", "createdAt": None, "updatedAt": None}
    server.on("PUT", "/registries/localhost%3A5000", registry)
    server.on("GET", "/registries", {"registries": [registry]})
    server.on("DELETE", "/registries/localhost%3A5000", {})
    done = cli("registries", "set", "localhost:5000", "--username", "alice", given=f"{VALUE}\n")
    assert done.returncode == 0, done.stderr
    body = server.requests_to("PUT", "/registries/localhost%3A5000")[0].json
    assert body == {"username": "alice", "password": VALUE, "push": False}
    assert VALUE not in shown(done)
    assert cli("registries", "list").stdout.splitlines()[-1].split() == ["localhost:5000", "alice", "no"]
    assert cli("registries", "delete", "localhost:5000").returncode == 0


def test_a_job_takes_ports_and_its_registrys_password(cli, server, protocol):
    server.on("POST", "/jobs", protocol.job())
    (cli.folder / ".gradient.toml").write_text('ports = "9000:90"\ncommand = "true"\nmachineType = "CPU"\n')
    common = ["jobs", "create", "--workspace", "none", "--detach"]
    assert cli(*common).returncode == 0
    own = ["--container", "ghcr.io/a/b", "--registryUsername", "alice", "--ports", "8080:80,81", "--ports", "82"]
    done = cli(*common, *own, given=f"{VALUE}\n")
    assert done.returncode == 0, done.stderr
    sent = [request.json for request in server.requests_to("POST", "/jobs")]
    assert sent[0]["ports"] == ["9000:90"]
    assert sent[1]["ports"] == ["8080:80,81", "82"]
    assert (sent[1]["registryUsername"], sent[1]["registryPassword"]) == ("alice", VALUE)
    (cli.folder / ".gradient.toml").write_text(f'registryPassword = "{VALUE}"\n')
    refused = cli(*common)
    assert (refused.returncode, VALUE in refused.stderr) == (2, False)
    assert "registryPassword must not be in a file" in refused.stderr


def test_links_are_shown_while_it_runs(cli, server, protocol):
    ports = [
        {"internal": 8080, "external": 20001, "url": "http://h:20001"},
        {"internal": 81, "external": 9000, "url": None},
        {"internal": 82, "external": None, "url": None},
    ]
    server.on("GET", f"/jobs/{protocol.id}", protocol.job(ports=ports))
    line = next(line for line in cli("jobs", "show", protocol.id).stdout.splitlines() if line.startswith("ports"))
    assert "http://h:20001 (its port 8080), port 9000 (its port 81), any free port (its port 82)" in line
