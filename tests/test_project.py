"""The repository's own rules: what is written beside the code is true of it, and no file grows without end."""

import ast
import functools
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from pydantic import BaseModel

from core.jobs.reasons import REASONS
from core.jobs.states import JobState
from core.settings import Settings
from core.system.failpoints import FAILPOINTS
from gradient_cli.main import main as client_main
from gradient_server.main import main as server_main

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parent.parent
PACKAGES = ("core", "service", "worker", "client", "gradient_server", "migrations", "images")
SOURCES = (*PACKAGES, "tests", "bench", "examples", "experiments", ".ci")
MAX_LINES = 450
MAX_FUNCTION_LINES = 40
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("images/**/*.md"), *ROOT.glob("examples/**/*.md")]
)
CLI_COMMAND = re.compile(r"gradient-cli((?: [a-z]+(?:-[a-z]+)*)+)")
SERVER_COMMAND = re.compile(r"gradient-server ([a-z]+(?:-[a-z]+)*)")
QUESTION = re.compile(r"(What|Which|Whether|How|Who|Whose|Where|When|Why|All that)\b")
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
TERMS = {
    **dict.fromkeys(("bell", "ring", "rings", "rang"), "notifier, notify, wake"),
    **dict.fromkeys(("card", "cards"), "gpu"),
    **dict.fromkeys(("shelf", "shelves"), "images, cache"),
    **dict.fromkeys(("hold", "holds"), "allocation, allocate"),
    **dict.fromkeys(("hear", "hears", "hearing", "heard", "deaf"), "ping, received, silent"),
    **dict.fromkeys(("patience", "patient"), "timeout, retry"),
    **dict.fromkeys(("way", "ways"), "mode, path"),
    **dict.fromkeys(("stray", "strays"), "orphan"),
    "noted": "record, set, update",
    **dict.fromkeys(("look", "looks", "looked"), "poll, query, check"),
    **dict.fromkeys(("told", "say", "said"), "report, print, output"),
    **dict.fromkeys(("ask", "asked", "wish", "wished", "wishes"), "request, requested"),
    **dict.fromkeys(("stretch", "stretches"), "range, span"),
    **dict.fromkeys(("census", "ledger"), "snapshot, log"),
    **dict.fromkeys(("nursery", "homecoming", "mood", "begun", "anew", "meant"), "a term of the field"),
}
"""Words that names must not contain, and words to use in their place."""
ASK_AND_TELL = re.compile(r"client/gradient_jobs/sweeps\.py:\d+: ask:")  # as Optuna calls it
PLAIN_ENGLISH = {
    "ask",
    "asked",
    "hold",
    "holds",
    "look",
    "looks",
    "looked",
    "say",
    "said",
    "told",
    "way",
    "ways",
}
"""Those of them that the name of a test, which is a sentence, may contain."""
MAKE_COMMAND = re.compile(r"(?:^|`)make ([a-z]+(?:-[a-z]+)*)", re.MULTILINE)


def python_files(*folders):
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


@pytest.fixture(scope="module")
def parse():
    """A function that parses a file, each of them once."""
    return functools.cache(lambda path: ast.parse(path.read_text()))


def statements(tree):
    """All statements of a module, at any depth; most nodes of a tree are expressions, which need not be walked."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
            yield node
            yield from statements(node)


def relative(path):
    return str(path.relative_to(ROOT))


# ---- Sizes


def test_no_file_passes_the_ceiling():
    sizes = {relative(path): len(path.read_text().splitlines()) for path in python_files(*SOURCES)}
    assert len(sizes) > 100
    generated = "migrations/versions/"
    assert {path for path, lines in sizes.items() if lines > MAX_LINES and not path.startswith(generated)} == set()


def test_no_function_passes_the_ceiling(parse):
    long = {}
    for path in python_files(*PACKAGES, "examples", "experiments"):
        for node in statements(parse(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = node.end_lineno - node.lineno + 1
                if lines > MAX_FUNCTION_LINES and path.parent.name != "versions":
                    long[f"{relative(path)}:{node.name}"] = lines
    assert long == {}


PATH_FUNCTIONS = {
    "os": {"walk", "chown", "lchown", "rename", "replace", "renames", "removedirs"},
    "shutil": {"rmtree", "copytree", "copy", "copy2", "copyfile", "move", "chown", "make_archive", "unpack_archive"},
}
BY_DESCRIPTOR = {
    "core/system/untrusted_folders.py": "the module that has them",
    "core/system/filesystem.py": "files of the service itself",
    "gradient_server/simulator": "a stand-in for tests",
    "worker/backends/tpu/vm/on_vm": "runs in the virtual machine of its job alone",
    "worker/runner/folder_sender.py": "runs on the machine of its job alone",
    "worker/environments/compile_environment.py": "runs in the isolation of builds",
    "worker/environments/finish_environment.py": "runs in the isolation of builds",
    "worker/environments/wanted.py": "reads packages of this installation",
}
"""Modules that may walk, move or give away paths, and why; elsewhere `core/system/untrusted_folders.py` does it."""


def test_what_others_can_write_is_reached_by_descriptor(parse):
    """A name in a folder of a job, a build or a container may be a link by the time that it is used."""
    offences = []
    for path in python_files("core", "worker", "service", "gradient_server"):
        name = str(path.relative_to(ROOT))
        if name.startswith(tuple(BY_DESCRIPTOR)):
            continue
        for node in ast.walk(parse(path)):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            owner, function = getattr(node.func.value, "id", None), node.func.attr
            by_path = not any(keyword.arg in {"dir_fd", "src_dir_fd", "dst_dir_fd"} for keyword in node.keywords)
            moves = owner != "os" and function in {"rename", "replace"} and len(node.args) == 1 and not node.keywords
            if (function in PATH_FUNCTIONS.get(str(owner), ()) and by_path) or function == "rglob" or moves:
                offences.append(f"{name}:{node.lineno}: {owner}.{function}")
    assert offences == []


def test_every_test_asserts(parse):
    functions = {
        f"{relative(path)}:{node.lineno}:{node.name}": (node.name, has_assert(node), called_names(node))
        for path in python_files("tests")
        for node in statements(parse(path))
        if isinstance(node, ast.FunctionDef)
    }
    asserting = {"raises", "run_state_machine_as_test"}  # directly, or through a function that is known to
    while more := {name for name, own, called in functions.values() if own or called & asserting} - asserting:
        asserting |= more
    assert len(asserting) > 100
    tests = {place: name for place, (name, _, _) in functions.items() if name.startswith("test_")}
    assert [place for place, name in tests.items() if name not in asserting] == []


def has_assert(function):
    return any(isinstance(node, ast.Assert) for node in ast.walk(function))


def called_names(function):
    """Names of the functions and methods that a function calls."""
    functions = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
    return {getattr(each, "attr", None) or getattr(each, "id", "") for each in functions}


# ---- Docstrings


def test_docstrings_open_with_a_noun_or_a_verb(parse):
    opened, questions = 0, []
    for path in python_files(*SOURCES):
        tree = parse(path)
        for node in (tree, *statements(tree)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                first = (ast.get_docstring(node) or "").partition("\n")[0]
                opened += bool(first)
                if QUESTION.match(first):
                    questions.append(f"{relative(path)}:{getattr(node, 'lineno', 1)}: {first}")
    assert opened > 1000
    assert questions == []


# ---- Names


def declared_names(tree):
    """Names of all functions, classes, variables, attributes and parameters in a module, with lines."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name, node.lineno


def test_names_are_terms_of_the_field(parse):
    checked, refused = 0, []
    for path in python_files(*PACKAGES, "bench", "experiments"):
        names = [(part, 0) for part in path.relative_to(ROOT).parts] + list(declared_names(parse(path)))
        checked += len(names)
        for name, line in names:
            refused += [
                f"{relative(path)}:{line}: {name}: instead of {word!r} use: {TERMS[word]}"
                for word in {word.lower() for word in WORD.findall(name)} & TERMS.keys()
            ]
    assert checked > 10_000
    assert [one for one in refused if not ASK_AND_TELL.match(one)] == []


def test_names_of_tests_and_log_events_are_terms_of_the_field(parse):
    tests = {
        node.name: path
        for path in python_files("tests")
        for node in statements(parse(path))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    events = {event: path for path in python_files(*PACKAGES) for event in log_events(parse(path))}
    assert len(tests) > 1000
    assert len(events) > 100
    assert {
        name: relative(tests[name]) for name in tests if set(name.split("_")) & (TERMS.keys() - PLAIN_ENGLISH)
    } == {}
    assert {name: relative(events[name]) for name in events if set(name.split("_")) & TERMS.keys()} == {}


def log_events(tree):
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="logger")), args=[ast.Constant(value=str(event)), *_]):
                yield event


def test_reasons_settings_and_states_are_terms_of_the_field():
    names = [*REASONS, *(name.lower() for name in declared_settings()), *JobState]
    assert len(names) > 150
    assert [name for name in names if set(re.split(r"[_.]+", name)) & TERMS.keys()] == []


# ---- Settings


def declared_settings():
    """Variable → (default, description), from the code."""
    found = {}
    for name, field in Settings.model_fields.items():
        group = field.default
        if isinstance(group, BaseModel):
            for inner, inner_field in type(group).model_fields.items():
                found[f"GRADIENT_{name}__{inner}".upper()] = (_written(inner_field.default), inner_field.description)
        else:
            found[f"GRADIENT_{name}".upper()] = (_written(group), field.description)
    return found


def _written(default):
    if isinstance(default, list):
        return json.dumps(default)  # as the variable has to be written
    return "" if default is None else str(default).lower() if isinstance(default, bool) else str(default)


def test_env_example_lists_every_setting_with_its_default_and_description():
    text = (ROOT / ".env.example").read_text()
    listed = re.findall(r"^# (.+)\n#(GRADIENT_[A-Z0-9_]+)=(.*)$", text, re.MULTILINE)
    assert len(re.findall(r"^#?\s*GRADIENT_[A-Z0-9_]+=", text, re.MULTILINE)) == len(listed)
    assert {name: (default, description) for description, name, default in listed} == declared_settings()


# ---- Documents


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_links_lead_to_something(document):
    text = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
    headings = {heading_anchor(line) for line in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        place, _, anchor = target.partition("#")
        file = (document.parent / place).resolve() if place else document
        assert file.exists(), f"{relative(document)} links to {target}, which is not there"
        if anchor and file.suffix == ".md":
            there = headings if file == document else _headings(file)
            assert anchor in there, f"{relative(document)} links to {target}, which has no such heading"


def _headings(file):
    return {heading_anchor(line) for line in re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)}


def heading_anchor(heading):
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def documented(pattern):
    text = "\n".join(path.read_text() for path in DOCUMENTS)
    return sorted({match.strip() for match in pattern.findall(text)})


def test_documented_commands_of_the_client_exist(monkeypatch, capsys):
    written = documented(CLI_COMMAND)
    commands = sorted({" ".join(words) for words in map(_command_words, written) if words})
    assert {"jobs create", "jobs logs", "jobs artifacts get", "machine-types", "login"} <= set(commands)
    for command in commands:
        monkeypatch.setattr(sys, "argv", ["gradient-cli", *command.split(), "--help"])
        assert exit_code(client_main) == 0, f"gradient-cli {command}: {capsys.readouterr().err}"
        assert capsys.readouterr().out.startswith(f"usage: gradient-cli {command}")


def _command_words(text):
    """The command at the beginning of what was written; arguments and prose follow it."""
    words = text.split()
    lengths = {
        "jobs": 2,
        "projects": 2,
        "images": 2,
        "secrets": 2,
        "registries": 2,
        "tpus": 2,
        "workers": 2,
        "storage": 2,
    } | {
        "machine-types": 1,
        "login": 1,
        "version": 1,
    }
    length = lengths.get(words[0], 0) + (words[:2] == ["jobs", "artifacts"])
    return words[:length] if len(words) >= length else []


def test_documented_commands_of_the_server_exist():
    commands = documented(SERVER_COMMAND)
    assert {"up", "api", "worker", "keys", "migrate"} <= set(commands)
    for command in commands:
        assert exit_code(server_main, [command, "--help"]) == 0, command


def test_documented_make_commands_exist():
    listed = re.findall(r"^  make ([\w-]+)", run("make", "help").stdout, re.MULTILINE)
    written = documented(MAKE_COMMAND)
    assert {"demo", "up", "test", "check"} <= set(written) <= set(listed)


def test_documents_name_files_and_tests_that_exist():
    for document in DOCUMENTS:
        for place in re.findall(
            r"`((?:core|service|worker|client|gradient_server|tests|docs)/[\w/.-]+)`", document.read_text()
        ):
            if not re.search(r"/[A-Z]+\.", place):  # NAME.py stands for any
                assert (ROOT / place).exists(), f"{relative(document)} names {place}, which is not there"


def test_documents_name_tests_that_exist():
    named = {
        match for document in DOCUMENTS for match in re.findall(r"`(tests/[\w/.]+)::(test_\w+)`", document.read_text())
    }
    assert len(named) > 10
    for file, test in sorted(named):
        assert f"def {test}(" in (ROOT / file).read_text(), f"{file}::{test} is not there"


def test_guarantees_are_shown_by_tests_of_make_test():
    text = (ROOT / "docs/guarantees.md").read_text()
    for file, test in re.findall(r"`(tests/[\w/.]+)::(test_\w+)`", text):
        source = (ROOT / file).read_text()
        assert f"@pytest.mark.slow\ndef {test}(" not in source, f"{file}::{test} is slow"
        assert not re.search(r"^pytestmark = .*\bslow\b", source, re.MULTILINE), f"{file} is slow"


def test_every_reason_and_variable_of_a_job_is_documented():
    text = (ROOT / "docs" / "jobs.md").read_text()
    assert [name for name in REASONS if f"`{name}`" not in text] == []
    variables = set(
        re.findall(r'"((?:GRADIENT|PS)_\w+)":', (ROOT / "worker" / "attempt" / "job_environment.py").read_text())
    )
    assert len(variables) > 10
    assert [name for name in sorted(variables) if f"`{name}`" not in text] == []


def exit_code(main, *arguments):
    """The exit code of a program's main function, which may return it or raise it."""
    try:
        return main(*arguments)
    except SystemExit as ended:
        return ended.code


def run(*command):
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


# ---- Code


def test_suppressions_have_their_reason():
    bare = re.compile(r"# (?:noqa: [A-Z0-9, ]+|type: ignore\[[a-z, -]+\])$", re.MULTILINE)
    assert [relative(path) for path in python_files(*PACKAGES) if bare.search(path.read_text())] == []


def test_every_fail_point_is_in_the_code_once():
    used = Counter(
        (name, backend_of(path))
        for path in python_files("core", "service", "worker", "gradient_server")
        for name in re.findall(r'failpoint\("(\w+)"\)', path.read_text())
        if relative(path) != "core/system/failpoints.py"
    )
    assert set(used.values()) == {1}
    assert {name for name, _ in used} == set(FAILPOINTS)
    starting = {one for one in used if one[1] and not one[0].startswith("stop_")}
    of_backends = {backend: {name for name, one in starting if one == backend} for _, backend in starting}
    assert len(of_backends) > 1
    assert all(names == {"created", "confirmed", "launched"} for names in of_backends.values()), of_backends


def backend_of(path):
    """Name of the backend that a file belongs to; None for all others."""
    inside = re.match(r"worker/backends/(\w+)", relative(path))
    return inside and inside[1]


def test_the_locked_uv_is_the_one_that_installs():
    """Another would replace it in .venv, and be replaced the next time."""
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    [version] = [package["version"] for package in lock["package"] if package["name"] == "uv"]
    assert f"\nuv=={version} " in (ROOT / ".ci" / "uv.txt").read_text()


def test_the_supported_versions_of_python_are_said_alike_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    assert project["project"]["requires-python"] == ">=3.11,<3.14"
    assert lock["requires-python"].replace(" ", "") == ">=3.11,<3.14"
    assert project["tool"]["ruff"]["target-version"] == "py311"
    assert project["tool"]["mypy"]["python_version"] == "3.11"
    assert (3, 11) <= sys.version_info[:2] <= (3, 13)
    assert "(3, 11) <= sys.version_info[:2] <= (3, 13)" in (ROOT / ".ci" / "environment").read_text()
