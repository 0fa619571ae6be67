"""Lines of requirements files: accepted, or refused before anything is installed."""

import pytest

from core.settings.network import EgressSettings
from core.system.egress import Egress
from worker.backends.base import LaunchError
from worker.environments.requirements_file import RequirementsReader

pytestmark = pytest.mark.unit


@pytest.fixture
def reader(tmp_path):
    (tmp_path / "workspace").mkdir()
    return RequirementsReader(tmp_path / "workspace", Egress(EgressSettings()))


def add(tmp_path, text, name="requirements.txt"):
    file = tmp_path / "workspace" / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def test_comments_continued_lines_and_options_are_read_as_pip_reads_them(reader, tmp_path):
    text = (
        "\ufeff# all of it\n\nnumpy>=2,<3  # arrays\nscikit-learn[extra] ; python_version >= '3.9'\n"
        "torch == 2.5.1 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n"
        "-i https://mirror.example.org/simple\n--extra-index-url=https://download.pytorch.org/whl/cpu\n"
        "tool @ https://example.org/tool-1-py3-none-any.whl#sha256=cc\n--prefer-binary\n"
    )
    reader.add_file(add(tmp_path, text))
    assert reader.lines == [
        "numpy>=2,<3",
        "scikit-learn[extra] ; python_version >= '3.9'",
        "torch == 2.5.1 --hash=sha256:aa --hash=sha256:bb",
        "--index-url https://mirror.example.org/simple",
        "--extra-index-url https://download.pytorch.org/whl/cpu",
        "tool @ https://example.org/tool-1-py3-none-any.whl#sha256=cc",
    ]


def test_included_files_are_read_once_and_constraints_stay_apart(reader, tmp_path):
    add(tmp_path, "six\n-r ../requirements.txt\n", "more/base.txt")
    add(tmp_path, "numpy<2\n", "limits.txt")
    reader.add_file(add(tmp_path, "numpy\n-r more/base.txt\n-c limits.txt\n"))
    assert (reader.lines, reader.constraints) == (["numpy", "six"], ["numpy<2"])


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("-e .", "pip install -e . &&"),
        (".", "folder or file"),
        ("./lib", "folder or file"),
        ("/etc/passwd", "folder or file"),
        ("lib/tool-1-py3-none-any.whl", "folder or file"),
        ("tool @ git+https://example.org/tool.git", "not an https address"),
        ("tool @ file:///tmp/tool.whl", "not an https address"),
        ("tool @ https://${UV_SECRET}/tool.whl", "not an https address"),
        ("tool @ https://127.0.0.1/tool.whl", "GRADIENT_EGRESS__ALLOWED"),
        ("--index-url https://169.254.169.254/", "GRADIENT_EGRESS__ALLOWED"),
        ("--find-links /root", "not an https address"),
        ("--no-binary :all:", "option --no-binary is not supported"),
        ("numpy --global-option=x", "option --global-option is not supported"),
        ("numpy --hash=sha256:aa -e /etc", "option -e is not supported"),
        ("numpy --hash=sha256:aa --requirement=/etc/shadow", "option --requirement is not supported"),
        ("--index-url https://mirror.example.org/simple -e /etc", "has a space"),
        ("--find-links https://mirror.example.org\\@127.0.0.1/", "a backslash"),
        ("tool @ https://10.0.0.1\\@example.org/tool.whl", "a backslash"),
        ("numpy=2", "'numpy=2' is not a requirement"),
        ("two words", "is not a requirement"),
        ("-r ../../secret", "outside of the workspace"),
        ("-r missing.txt", "No such file"),
        ("-r .", "cannot be read"),
    ],
)
def test_what_is_no_package_of_an_index_is_refused_with_its_line(reader, tmp_path, line, says):
    (tmp_path / "secret").write_text("not for jobs")
    with pytest.raises(LaunchError) as refused:
        reader.add_file(add(tmp_path, f"six\n{line}\n"))
    assert refused.value.reason == "requirements_invalid"
    assert says in refused.value.detail
    assert "not for jobs" not in refused.value.detail
    assert ".txt" in refused.value.detail or "secret" in refused.value.detail or line == "-r ."


def test_a_link_out_of_the_workspace_is_not_read(reader, tmp_path):
    (tmp_path / "secret").write_text("not for jobs")
    link = tmp_path / "workspace" / "requirements.txt"
    link.symlink_to(tmp_path / "secret")
    with pytest.raises(LaunchError, match="outside of the workspace"):
        reader.add_file(link)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_file_is_read_in_the_encodings_of_editors(reader, tmp_path, encoding):
    reader.add_file(add(tmp_path, "numpy\r\nsix\r\n".encode(encoding)))
    assert reader.lines == ["numpy", "six"]


def test_a_file_in_another_encoding_says_so(reader, tmp_path):
    with pytest.raises(LaunchError, match="not UTF-8"):
        reader.add_file(add(tmp_path, "# für alle\nnumpy\n".encode("latin-1")))


@pytest.mark.parametrize(
    "line",
    [
        "tool @ https://example.org/tool.whl\n-e=/etc",
        "tool @ https://example.org/tool.whl\r--requirement=/etc/shadow",
        "tool @ https://example.org/tool.whl\x85-e=/etc",
        "numpy --hash=sha256:aa\n-e /etc",
        "numpy\n-e /etc",
        "numpy>=2\n",
    ],
)
def test_a_string_of_several_lines_is_refused(reader, line):
    """Strings in TOML may hold any character; the installer would read a second line as one of its own."""
    with pytest.raises(LaunchError) as refused:
        reader.add_lines([f"{line}x"], "pyproject.toml")
    assert refused.value.reason == "requirements_invalid"
    assert not reader.lines
    with pytest.raises(LaunchError):
        reader.add_index("https://mirror.example.org/simple\n-e /etc", "uv.lock")
    assert not reader.lines


@pytest.mark.parametrize(
    "line",
    [
        "numpy; " + "(" * 3000 + "python_version > '3'" + ")" * 3000,
        "-r a\0b.txt",
        "-\0",
        "-r " + "n" * 5000,
        "-r loop.txt",
    ],
)
def test_a_hostile_line_is_refused_with_a_text_that_can_be_stored(reader, tmp_path, line):
    (tmp_path / "workspace" / "loop.txt").symlink_to("loop.txt")
    with pytest.raises(LaunchError) as refused:
        reader.add_file(add(tmp_path, f"{line}\n"))
    assert refused.value.reason == "requirements_invalid"
    assert "\0" not in refused.value.detail
    assert len(refused.value.detail) <= 600


def test_files_that_include_one_another_too_deeply_are_refused(reader, tmp_path):
    for number in range(1500):
        add(tmp_path, f"-r {number + 1}.txt\n", f"{number}.txt")
    add(tmp_path, "numpy\n", "1500.txt")
    reader.add_file(tmp_path / "workspace" / "1490.txt")
    assert reader.lines == ["numpy"]
    with pytest.raises(LaunchError, match="more than 20 files include one another"):
        reader.add_file(tmp_path / "workspace" / "0.txt")
