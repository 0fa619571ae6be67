"""Names of images, and what a job says about its own."""


def test_a_build_alone_needs_no_command(cli, server, protocol):
    server.on("POST", "/jobs", protocol.Reply(protocol.job(), 201))
    create = ("jobs", "create", "--machineType", "CPU", "--workspace", "none", "--detach")
    assert "command" in cli(*create, "--useDockerfile").stderr
    assert cli(*create, "--useDockerfile", "--buildOnly", "--imagePullPolicy", "Always").returncode == 0
    [request] = server.requests
    assert request.json["command"] == ""
    assert (request.json["buildOnly"], request.json["imagePullPolicy"]) == (True, "Always")
