"""Names of images, and what a job says about its own."""

import json


def test_short_names_are_listed(cli, server):
    one = {"name": "trainer", "aliases": ["ours/trainer"], "image": "ours/trainer:1", "gpuImage": "ours/trainer:1-gpu"}
    server.on("GET", "/images", {"images": [one | {"summary": "it trains", "hosts": 2}]})
    listed = cli("images", "list")
    assert listed.returncode == 0
    [head, row] = listed.stdout.splitlines()
    assert head.split()[:2] == ["NAME", "IMAGE"]
    for text in ("trainer", "ours/trainer:1", "ours/trainer:1-gpu", "2", "it trains", "ours/trainer"):
        assert text in row
    assert json.loads(cli("images", "list", "--json").stdout) == {
        "images": [one | {"summary": "it trains", "hosts": 2}]
    }


def test_a_server_without_names_says_what_to_do(cli, server):
    server.on("GET", "/images", {"images": []})
    assert "image references" in cli("images", "list").stderr


def test_a_clone_is_pinned_only_when_asked(cli, server, protocol):
    server.on("POST", f"/jobs/{protocol.id}/clone", protocol.Reply(protocol.job(), 201))
    cli("jobs", "clone", protocol.id, "--detach")
    cli("jobs", "clone", protocol.id, "--detach", "--pinImage")
    assert [request.query for request in server.requests] == [{}, {"pinImage": "true"}]


def test_a_build_goes_out_as_the_server_names_it(cli, server, protocol):
    server.on("POST", "/jobs", protocol.Reply(protocol.job(), 201))
    create = ("jobs", "create", "--machineType", "CPU", "--command", "true", "--workspace", "none", "--detach")
    flags = ("--useDockerfile", "--relDockerfilePath", "d/Dockerfile", "--registryTarget", "h/x:1")
    assert cli(*create, *flags).returncode == 0
    (cli.folder / ".gradient.toml").write_text(
        'useDockerfile = true\nrelDockerfilePath = "d/Dockerfile"\nregistryTarget = "h/x:1"\nbuildOnly = false\n'
    )
    assert cli(*create).returncode == 0
    wanted = {"useDockerfile": True, "relDockerfilePath": "d/Dockerfile", "registryTarget": "h/x:1"}
    for request in server.requests:
        assert wanted.items() <= request.json.items()
        assert "buildOnly" not in request.json


def test_a_build_alone_needs_no_command(cli, server, protocol):
    server.on("POST", "/jobs", protocol.Reply(protocol.job(), 201))
    create = ("jobs", "create", "--machineType", "CPU", "--workspace", "none", "--detach")
    assert "command" in cli(*create, "--useDockerfile").stderr
    assert cli(*create, "--useDockerfile", "--buildOnly", "--imagePullPolicy", "Always").returncode == 0
    [request] = server.requests
    assert request.json["command"] == ""
    assert (request.json["buildOnly"], request.json["imagePullPolicy"]) == (True, "Always")


def test_a_wrong_flag_in_the_project_file_is_explained(cli):
    (cli.folder / ".gradient.toml").write_text('useDockerfile = "yes"\n')
    refused = cli("jobs", "create", "--machineType", "CPU", "--command", "true")
    assert refused.returncode == 2
    assert "useDockerfile: must be true or false" in refused.stderr


def test_a_job_shows_its_image(cli, server, protocol):
    digest = "ours/trainer@sha256:" + "0a" * 32
    shown = {"container": "trainer", "image": "ours/trainer:1", "imageDigest": digest, "imagePullPolicy": "Never"}
    server.on("GET", f"/jobs/{protocol.id}", protocol.job(**shown))
    text = cli("jobs", "show", protocol.id).stdout
    for value in (*shown.values(), "image digest"):
        assert value in text
    built = {"useDockerfile": True, "buildOnly": True, "relDockerfilePath": None, "registryTarget": "h/x:1"}
    server.on("GET", f"/jobs/{protocol.id}", protocol.job(**built))
    text = cli("jobs", "show", protocol.id).stdout
    assert "Dockerfile, build only" in text
    assert "h/x:1" in text
