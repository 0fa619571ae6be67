"""ENTRYPOINTs that run a command that is given to them."""

import pytest

from worker.backends.docker.container.image_settings import find_entrypoint
from worker.runner.stop_signal import signal_number

FILES = {
    "/e": b'#!/bin/sh\nexport A=1\nexec "$@"\n',
    "/usr/local/bin/nv.sh": b'#!/bin/bash\nif [[ $# -eq 0 ]]; then exec "/bin/bash"; else exec "$@"; fi\n',
    "/usr/local/bin/start.sh": b'#!/bin/bash\ncmd=( "$@" )\nexec "${cmd[@]}"\n',
    "/serve": b'#!/bin/sh\nexec python serve.py "$@"\n',
    "/array": b'#!/bin/bash\ncmd=(python "$@")\nexec "${cmd[@]}"\n',
    "/binary": b'\x7fELF exec "$@"\n',
    "/says": b'#!/bin/sh\necho exec "$@"\n',
}


@pytest.mark.parametrize(
    ("entrypoint", "expected"),
    [
        (None, []),
        (["/bin/bash"], []),
        (["/usr/bin/tini", "-g", "--"], []),
        (["/e"], ["/e"]),
        (["nv.sh"], ["nv.sh"]),
        (["tini", "-g", "--", "start.sh"], ["start.sh"]),
        (["dumb-init", "/e"], ["/e"]),
        (["bash", "-l", "/e"], ["bash", "-l", "/e"]),
        (["/bin/bash", "-lc"], ["/bin/bash", "-lc", 'exec "$@"', "bash"]),
        (["/bin/bash", "--login"], ["/bin/bash", "--login", "-c", 'exec "$@"', "bash"]),
        (["bash", "-c", '. x && exec "$@"', "--"], ["bash", "-c", '. x && exec "$@"', "--"]),
        (["conda", "run", "-n", "a"], ["conda", "run", "-n", "a"]),
        (["bash", "-c", 'exec "$@"'], None),  # the command's first word would be its $0
        (["/bin/sh", "-c", "top"], None),
        (["conda", "info"], None),
        (["/serve"], None),
        (["/array"], None),
        (["/binary"], None),
        (["/says"], None),
        (["/missing"], None),
        (["python"], None),
    ],
)
def test_an_entrypoint_is_run_if_it_runs_what_follows_it(entrypoint, expected):
    assert find_entrypoint({"Entrypoint": entrypoint}, FILES.get) == expected


@pytest.mark.parametrize(
    ("name", "number"),
    [(None, 15), ("SIGINT", 2), ("int", 2), ("9", 9), ("SIGRTMIN+3", 37), ("nonsense", 15), ("99", 15)],
)
def test_a_stop_signal_is_a_number(name, number):
    assert signal_number(name) == number
