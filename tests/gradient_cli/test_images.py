"""Names of images, and what a job says about its own."""


def test_a_server_without_names_says_what_to_do(cli, server):
    server.on("GET", "/images", {"images": []})
    assert "image references" in cli("images", "list").stderr


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
