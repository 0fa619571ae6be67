"""Commands and calls in documents and messages: the client has them, with these options and arguments."""

import ast
import io
import re
import shlex
from contextlib import redirect_stdout
from functools import cache
from itertools import takewhile

import pytest
from support.documents import PLACEHOLDER, ROOT, SUBSTITUTES, blocks, inline_codes

import gradient_jobs
from gradient_cli.errors import ClientError
from gradient_cli.main import COMMANDS, build_parser

OPERATORS = re.compile(r"[;&|()<>]+\Z")
NO_COMMANDS = {"is given none"}  # prose that only looks like a command
CALL = re.compile(r"gradient_jobs\.\w+\([^`]*\)")


def split(line):
    """Return the words of each `gradient-cli` in a line of shell, up to the next operator."""
    lexer = shlex.shlex(line.replace("$(", "( "), posix=True, punctuation_chars=";&|()<>")
    lexer.whitespace_split, lexer.commenters = True, "#"
    found, words = [], None
    for word in lexer:
        if OPERATORS.match(word):
            words = None
        elif word == "gradient-cli" and words is None:
            found.append(words := [])
        elif words is not None:
            words.append(word)
    return found


def path_of(words):
    """Return the command that words begin with, as in the client's table; of a group, as far as it goes."""
    path = ""
    for word in words:
        if f"{path} {word}".lstrip() not in COMMANDS:
            break
        path = f"{path} {word}".lstrip()
    return path


def test_commands_of_documents_are_taken_by_the_client():
    checked, wrong = 0, []
    for path, language, text in blocks():
        lines = [] if language else re.sub(r"\\\n", " ", text).splitlines()
        for line in (line.removeprefix("$ ") for line in lines if "gradient-cli " in line):
            for words in split(line):
                given = words[: words.index("--")] if "--" in words else words
                checked += 1
                try:
                    build_parser(path_of(words)).parse_args(given)
                except (ClientError, SystemExit) as error:
                    wrong.append(f"{path}: {line}: {error}")
    assert wrong == []
    assert checked > 50


@cache
def messages():
    """Return the texts of the programs that name the client, with a placeholder for each value."""
    found = []
    for package in ("client", "core", "service", "worker", "gradient_server"):
        for path in (ROOT / package).rglob("*.py"):
            source = path.read_text(encoding="utf-8")
            if "gradient-cli " in source or "gradient_jobs." in source:
                found += [(path.relative_to(ROOT), text_of(node)) for node in ast.walk(ast.parse(source))]
    return [(path, text) for path, text in found if "gradient" in text]


def text_of(node):
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) if isinstance(part, ast.Constant) else PLACEHOLDER for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


@cache
def options_of(command):
    with pytest.raises(SystemExit), redirect_stdout(io.StringIO()) as shown:
        build_parser(command).parse_args([*command.split(), "--help"])
    return set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", shown.getvalue()))


def test_messages_and_prose_name_commands_and_options_that_the_client_has():
    checked, wrong = 0, []
    for path, text in (*messages(), *inline_codes()):
        for said in re.findall(r"gradient-cli ([a-z][^`\n;]*)", text):
            words = re.sub(r"[,.)]", " ", said).split()
            if PLACEHOLDER in words[:2] or said in NO_COMMANDS:
                continue
            command = path_of(words)
            # What follows a script is its own.
            following = list(takewhile(lambda word: word != "py", words[len(command.split()) :]))
            checked += 1
            if not command or (not COMMANDS[command][0] and following[:1] not in ([], ["--help"])):
                wrong.append(f"{path}: gradient-cli {said}")
                continue
            options = {word.partition("=")[0] for word in following if re.match(r"--?[a-zA-Z]", word)}
            wrong += [f"{path}: {said}: {option}" for option in options - options_of(command)]
    assert wrong == []
    assert checked > 100


def test_calls_of_prose_and_messages_can_be_made(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADIENT_METRICS_FILE", str(tmp_path / "metrics.jsonl"))
    calls = [*inline_codes(), *((path, text) for path, text in messages() if not str(path).startswith("client/"))]
    checked = 0
    for path, text in calls:
        for call in CALL.findall(text):
            checked += 1
            name = call.partition("(")[0].rpartition(".")[2]
            assert hasattr(gradient_jobs, name), f"{path}: {call}"
            if name in {"log", "log_params"}:
                given = call.replace(PLACEHOLDER, "val_loss=0.4").replace("…", "1")
                exec(given, {"gradient_jobs": gradient_jobs, "step": 1, "loss": 0.5})  # noqa: S102 - our own documents
    assert checked > 3


@pytest.mark.parametrize(("path", "old"), [(path, old) for path, old, *_ in SUBSTITUTES])
def test_what_is_substituted_in_snippets_is_there(path, old):
    assert old in (ROOT / path).read_text(encoding="utf-8")
