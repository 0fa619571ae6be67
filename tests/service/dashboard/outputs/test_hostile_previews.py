"""Files made to be dear to preview: what is read, parsed and shown of each is bounded."""

import io
import json
import struct

import pytest

from service.dashboard.outputs.previews import TableOrder, read_preview

MIB = 1024**2


class CountedFile(io.BytesIO):
    """A file that records how many bytes each read returned."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.reads: list[int] = []

    def read(self, size: int | None = -1) -> bytes:
        content = super().read(size)
        self.reads.append(len(content))
        return content


def look(content, path):
    return read_preview(io.BytesIO(content), len(content), path, 0, TableOrder())


def test_the_size_of_a_directory_is_not_taken_from_the_archive():
    size = 16 * MIB
    end = b"PK\x05\x06" + struct.pack("<4H2IH", 0, 0, 1, 1, 46, 0, 0)
    record = b"PK\x06\x06" + struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, 1, 1, size, 0)
    content = bytes(size) + record + b"PK\x06\x07" + struct.pack("<IQI", 0, size, 1) + end
    file = CountedFile(content)
    assert read_preview(file, len(content), "a.zip", 0, TableOrder()).kind == "none"
    assert sum(file.reads) < MIB


def test_a_long_header_of_tensors_is_not_parsed():
    body = b'{"a":[' + b"[]," * 700_000 + b"[]]}"
    file = CountedFile(struct.pack("<Q", len(body)) + body)
    assert read_preview(file, len(body) + 8, "a.safetensors", 0, TableOrder()).kind == "none"
    assert sum(file.reads) == 8


@pytest.mark.parametrize("change", [{"shape": [float("inf")]}, {"data_offsets": [0, float("inf")]}, {"shape": ["x"]}])
def test_a_tensor_of_no_size_is_no_preview(change):
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], **change}}).encode()
    assert look(struct.pack("<Q", len(header)) + header, "a.safetensors").kind == "none"


def test_the_size_of_a_tensor_can_be_nonsense():
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 10**400]}}).encode()
    [entry] = look(struct.pack("<Q", len(header)) + header, "a.safetensors").parsed.entries
    assert entry.size is None


@pytest.mark.parametrize(
    "text",
    [
        (">" * 19 + "a\n" + "a\n" * 20) * 2000,
        "a\n\n" * 40_000,
        "*a_ " * 30_000,
        "[" * 120_000,
        "|".join("a" * 6000) + "\n" + "|".join("-" * 6000) + "\n" + "a\n" * 6000,
        "[a]: http://x/" + "y" * 4000 + "\n\n" + "[a]\n" * 3000,
        '[a]: http://x "' + "y" * 4000 + '"\n\n' + "[a]\n" * 3000,
        "> " * 25 + "deep",
        "- " * 25 + "deep",
        "a " * 70_000,
    ],
    ids=[
        "quotes", "paragraphs", "emphasis", "brackets", "table", "links", "titles", "deep quote", "deep list", "long"
    ],
)  # fmt: skip
def test_markdown_that_takes_many_steps_is_shown_as_text(text):
    preview = look(text.encode(), "a.md")
    assert preview.kind == "text"
    assert preview.reason.startswith(
        "Shown as plain text: Markdown is not rendered if it is larger than 128 KiB, deeply nested"
    )
    assert preview.text == text


def test_usual_markdown_is_rendered_up_to_the_largest_size():
    section = "## Title\n\nSome *text* with `code` and a [link](https://example.org) in it.\n\n- one\n- two\n\n"
    section += "| a | b |\n|---|--:|\n" + "| one | two |\n" * 5 + "\n```\ncode\n```\n\n" + "Words of a long line. " * 60
    text = (section + "\n\n") * (128 * 1024 // (len(section) + 2))
    preview = look(text.encode(), "a.md")
    assert (preview.kind, preview.reason) == ("markdown", "")
    assert preview.parsed.count("<h2>") == text.count("## Title")


def test_long_json_is_shown_as_text():
    content = b"[" + b"[]," * 400_000 + b"[]]"
    assert look(content, "a.json").kind == "text"
    assert look(content + b"\n", "a.jsonl").kind == "text"
    assert look(b"[" + b"[]," * 300_000 + b"[]]", "a.json").kind == "tree"
