"""Files made to be dear to preview: what is read, parsed and shown of each is bounded."""

import io
import json
import struct
import zipfile

import numpy as np
import pytest

from service.dashboard.outputs.previews import TableOrder, read_preview

MIB = 1024**2
NESTED = b"[" + b"[]," * 21_000 + b"]"
ARRAY = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"


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


def npy(header):
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header


def npz(*members, method=zipfile.ZIP_DEFLATED):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as archive:
        for number, member in enumerate(members):
            archive.writestr(f"{number}.npy", member)
    return packed.getvalue()


def test_of_many_arrays_the_first_headers_are_read():
    found = look(npz(*[npy(NESTED)] * 1000), "a.npz").parsed
    assert (found.total, len(found.entries)) == (1000, 100)
    assert {entry.detail for entry in found.entries} == {"not an array"}


@pytest.mark.parametrize("header", [NESTED, ARRAY + b" " * 60_000])
def test_a_long_header_of_an_array_is_not_read(header):
    file = CountedFile(npy(header))
    assert read_preview(file, len(npy(header)), "a.npy", 0, TableOrder()).kind == "none"
    assert sum(file.reads) < 100


def test_a_header_of_an_array_is_not_evaluated():
    for value in (b"(2 + 1j,)", b"([], 1)", b"(-1,)", b"[1]"):
        assert look(npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': %s, }" % value), "a.npy").kind == "none"
    for other in (ARRAY.replace(b" ", b""), ARRAY.replace(b"(2, 3)", b"(2L, 3L)") + b"  \n"):
        assert look(npy(other), "a.npy").parsed.entries[0].detail == "<f4 (2, 3)"
    records = io.BytesIO()
    np.save(records, np.zeros(3, [("x", "<f4"), ("y", "<i8", (2,))]))
    detail = look(records.getvalue(), "a.npy").parsed.entries[0].detail
    assert detail == "[('x', '<f4'), ('y', '<i8', (2,))] (3)"


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_members_that_are_unpacked_in_whole_blocks_are_not_opened(method):
    [entry] = look(npz(npy(ARRAY) + bytes(MIB), method=method), "a.npz").parsed.entries
    assert entry.detail == "not an array"


def test_a_member_that_is_damaged_is_no_array():
    content = bytearray(npz(npy(ARRAY)))
    content[35] = 0xFF  # no kind of block has this number
    assert look(bytes(content), "a.npz").parsed.entries[0].detail == "not an array"


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
    assert preview.reason.startswith("Shown as plain text: Markdown of more than 128 KiB, deep nesting")
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
