"""Users that jobs run as, and what jobs of one project can do to another's, on a real engine whose worker is root."""

import os
import re
import stat

import pytest
from support.backend_harness import BackendHarness

from core.storage.artifacts.store import DirectoryStore
from worker.backends.docker.container.users import ContainerUser, passwd_with


@pytest.fixture
def make(docker_server, tmp_path):
    places = []

    def place(**settings):
        places.append(BackendHarness("docker", tmp_path / "home", docker_server.settings(**settings)))
        return places[-1]

    yield place
    for one in places:
        one.clear()


def run(place, command, **options):
    """A job of its own, to its end; its exit code and what it printed."""
    place.job_id = f"{place.job_id[:-4]}{len(place.made):04d}"
    spec = place.spec(command, **options)
    code = place.wait(place.launch(spec)).code
    return code, place.output(spec).decode(), spec


def test_a_worker_that_is_root_runs_no_job_as_root(make):
    assert os.getuid() == 0, "the worker here is root, as its firewall wants it"
    code, said, spec = run(make(), "id -u; id -g; cat /proc/self/uid_map; echo $HOME $USER; touch $HOME mine")
    uid, gid, *_ = said.split()
    assert (code, int(uid) >= 1_879_048_192, gid) == (0, True, uid)
    assert said.endswith("/home/gradient gradient\n")
    assert (spec.workspace / "mine").stat().st_uid == int(uid)


def test_a_job_s_user_has_a_name_and_a_home_apart_from_the_workspace(make):
    tell = (
        "whoami; grep :$(id -u): /etc/passwd; ls -ld ~ | cut -c1-10; mkdir -p ~/.cache/x; echo x >~/.cache/x/y; ls -A"
    )
    code, said, spec = run(make(), tell)
    name, entry, mode = said.splitlines()
    assert (code, name, mode) == (0, "gradient", "drwx------")
    assert entry.split(":")[5:] == ["/home/gradient", "/bin/sh"]
    assert not list(spec.workspace.iterdir()), "nothing of its home is in the workspace"


@pytest.mark.parametrize(
    ("known", "line"),
    [
        (b"root:x:0:0::/root:/bin/sh", b"gradient:x:7:8::/home/gradient:/bin/sh\n"),
        (b"gradient:x:1:1::/:/bin/sh\n", b"gradient-7:x:7:8::/home/gradient:/bin/sh\n"),
        (b"app:x:7:7::/app:/bin/sh\n", None),
        (b"", b"gradient:x:7:8::/home/gradient:/bin/sh\n"),
    ],
)
def test_the_list_of_users_of_an_image_is_completed(known, line):
    completed = passwd_with(ContainerUser(7, 8, (7, 8)), known)
    assert completed == (None if line is None else (known.rstrip(b"\n") + b"\n" if known else b"") + line)


def test_projects_have_users_of_their_own_and_jobs_of_one_the_same(make):
    place = make()
    told = [run(place, "id -u", project_id=project)[1] for project in ("p1", "p2", "p1")]
    assert told[0] == told[2] != told[1]


def test_a_program_left_with_the_setuid_bit_is_nobodys_on_the_host(make):
    code, _, spec = run(make(), "cp /bin/busybox /storage/sh; chmod 4755 /storage/sh; cp -p /storage/sh /artifacts/sh")
    left = (spec.storage / "sh").stat()
    assert (code, left.st_uid == 0, left.st_gid == 0, bool(left.st_mode & stat.S_ISUID)) == (0, False, False, True)
    store = DirectoryStore(spec.control.parents[2] / "store")
    store.close(spec.job_id, 1, spec.artifacts)
    kept = next((spec.control.parents[2] / "store").rglob("files/sh")).stat()
    assert stat.S_IMODE(kept.st_mode) == 0o755, "what is collected has no such bits"


def test_a_project_cannot_see_change_or_remove_what_another_keeps(make):
    place = make()
    keep = "umask 0; echo mine >/storage/model; mkdir /storage/deep; chmod 777 /storage/model /storage/deep /storage"
    assert run(place, keep)[0] == 0
    find = "find / -name model 2>/dev/null; ls -a /storage /storage/..; rm -rf /storage/* ; echo theirs >/storage/model"
    code, said, _ = run(place, find, project_id="p2")
    assert (code, re.findall(r"\S*model", said)) == (0, [])
    assert run(place, "cat /storage/model; ls /storage")[1].split() == ["mine", "datasets", "deep", "model"]


def test_nobody_writes_into_the_data_sets_and_everybody_reads_them(make):
    place = make()
    sets = place.spec("true").datasets
    (sets / "mnist.npz").write_text("numbers\n")
    sets.chmod(0o777)
    (sets / "mnist.npz").chmod(0o666)
    attack = (
        "cat /storage/datasets/mnist.npz; for do in 'rm -rf /storage/datasets/mnist.npz' 'rmdir /storage/datasets' "
        "'mv /storage/datasets /storage/mine' 'touch /storage/datasets/new' 'ln -sfn /etc /storage/datasets'; "
        "do sh -c \"$do\" 2>/dev/null && echo did $do; done; sh -c 'echo x >/storage/datasets/mnist.npz' && echo wrote"
    )
    for project in ("p1", "p2"):
        said = run(place, attack, project_id=project)[1]
        assert [line for line in said.splitlines() if line == "numbers" or line.startswith(("did", "wrote"))] == (
            ["numbers", "did ln -sfn /etc /storage/datasets"] if "did ln" in said else ["numbers"]
        )
    assert [entry.name for entry in sets.iterdir()] == ["mnist.npz"]
    assert (sets / "mnist.npz").read_text() == "numbers\n"


def test_a_user_that_a_job_names_still_writes_into_its_projects_storage(make):
    code, said, spec = run(make(), "id -u; touch /storage/mine", user="4711")
    assert (code, said, (spec.storage / "mine").stat().st_uid) == (0, "4711\n", 4711)
