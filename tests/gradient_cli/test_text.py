"""Files as editors of any system write them: with a byte-order mark, in UTF-16, with CRLF."""

from pathlib import Path

import pytest

from gradient_cli.errors import ClientError, UsageError
from gradient_cli.workspace import project_file, variables
from gradient_cli.workspace.packing import archive
from worker.backends.docker.images.build import _ignore_patterns

pytestmark = pytest.mark.unit


@pytest.fixture(params=["utf-8", "utf-8-sig", "utf-16", "utf-16-be with a mark"])
def save(request, tmp_path):
    def write(name, text):
        encoding, _, marked = request.param.partition(" ")
        (tmp_path / name).write_bytes((("\ufeff" if marked else "") + text.replace("\n", "\r\n")).encode(encoding))
        return str(tmp_path / name)

    return write


@pytest.mark.parametrize("name", [".gitignore", ".gradientignore"])
def test_the_first_pattern_of_an_ignore_file_counts(save, tmp_path, name):
    for folder in ("private", "größe", "code"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a").write_text("")
    save(name, "private/\n/größe\n")
    assert [entry.path for entry in archive.WorkspaceFolder(str(tmp_path)).files] == [name, "code/a"]


def test_an_ignore_file_that_cannot_be_decoded_is_refused(tmp_path):
    (tmp_path / ".gitignore").write_bytes(b"\xff\xfeprivate")
    with pytest.raises(ClientError, match="not UTF-8 text"):
        archive.WorkspaceFolder(str(tmp_path))


@pytest.mark.parametrize(
    ("read", "says"), [(project_file.read, "not UTF-8 text"), (variables.read_file, "not UTF-8 text")]
)
def test_other_encodings_are_refused(tmp_path, read, says):
    (tmp_path / "file").write_bytes("A = 'größe'".encode("latin-1"))
    with pytest.raises(UsageError, match=says):
        read(str(tmp_path / "file"))


def test_a_dockerignore_is_read(save, tmp_path):
    save(".dockerignore", "private\n# none\ngröße\n")
    assert _ignore_patterns(Path(tmp_path)) == ["private", "größe"]
