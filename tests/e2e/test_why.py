"""`jobs why`, from a program that really fails to the client's words."""

import json

MAIN = "def main():\n    limits = {}\n    print(limits['steps'])\nmain()\n"


def test_why_names_the_place_in_the_code(service, tmp_path):
    (tmp_path / "main.py").write_text(MAIN)
    service.cli("jobs", "create", "--machineType", "CPU", "--command", "python main.py", folder=tmp_path, code=1)
    told = service.cli("jobs", "why", folder=tmp_path).stdout
    assert "code: the program, its command or its options" in told
    assert "KeyError: 'steps'" in told
    assert "main.py:3" in told
    explanation = json.loads(service.cli("jobs", "why", "--json", folder=tmp_path).stdout)
    assert explanation["place"] == {"file": "main.py", "line": 3}


def test_why_offers_a_clone_with_more_memory(service, tmp_path):
    hungry = "python -c 'x = bytearray(1 << 30); input()'"
    create = ["jobs", "create", "--machineType", "CPU", "--memoryMb", "128", "--workspace", "none"]
    service.cli(*create, "--command", hungry, folder=tmp_path, code=137)
    done = service.cli("jobs", "why", folder=tmp_path)
    assert "memory: the job's memory limit (128 MiB)" in done.stdout
    assert "--memoryMb 256" in done.stderr
