"""Previews by type, of good, hostile and damaged files."""

import io
import json
import random
import struct
import zipfile

import pytest

from service.dashboard.outputs.previews import TableOrder, read_preview
from service.dashboard.outputs.previews.documents import FileLinks, read_json, read_json_lines, read_markdown

FILE_ORDER = TableOrder()


def look(content, path, *, start=0, order=FILE_ORDER):
    return read_preview(io.BytesIO(content), len(content), path, start, order)


def test_a_table_is_sorted_by_numbers_or_by_text():
    content = b"name,loss\nb,10\na,9\nc,-1\n"
    table = look(content, "x.csv").parsed
    assert (table.header, table.numeric, table.cut) == (["name", "loss"], [False, True], False)
    assert [row[0] for row in table.rows] == ["b", "a", "c"]
    assert [row[0] for row in look(content, "x.csv", order=TableOrder(2)).parsed.rows] == ["c", "a", "b"]
    assert [row[0] for row in look(content, "x.csv", order=TableOrder(1, descending=True)).parsed.rows] == [
        "c",
        "b",
        "a",
    ]
    assert look(content, "x.csv", order=TableOrder(9)).parsed.rows == table.rows


def test_a_table_is_cut_to_its_first_rows_and_short_rows_are_filled():
    table = look(b"a\tb\n" + b"1\n" * 1500, "x.tsv").parsed
    assert (len(table.rows), table.rows[0], table.cut) == (1000, ["1", ""], True)
    large = look(b"a,b\n" + b"123456789,2\n" * 300_000, "x.csv").parsed
    assert large.cut
    assert {tuple(row) for row in large.rows} == {("123456789", "2")}
    assert look(b"a;b;c\n1;2;3\n", "x.csv").parsed.header == ["a", "b", "c"]
    assert look(b"x" * 200_000 + b"\n", "x.csv").kind == "text"
    assert look(b"\n\n", "x.csv").kind == "text"


def test_json_is_a_tree_of_limited_size_and_depth():
    root = read_json('{"a": [1, {"b": null}], "c": "<script>"}')
    assert (root.value, root.open, [child.label for child in root.children]) == ("2 keys", True, ["a", "c"])
    assert [child.value for child in root.children] == ["2 values", '"<script>"']
    assert len(read_json(json.dumps(list(range(10_000)))).children) == 4001
    assert read_json("[" * 500 + "]" * 500) is not None
    for wrong in ("{", "[" * 100_000, "1" * 10_000, ""):
        assert read_json(wrong) is None
    assert look(b"{", "x.json").kind == "text"
    assert [node.label for node in read_json_lines('{"a":1}\n\n{"a":2}\n')] == ["1", "2"]
    assert read_json_lines("{}\nnot json\n") is None


def test_markdown_shows_the_pictures_and_links_of_its_own_job():
    html = read_markdown(
        "![loss](figures/a%20b.png) [csv](../p.csv#x) [up](../../x) [root](/ui/logout) ![no](../../x.png)",
        FileLinks("j1", "out/report.md", 2),
    )
    assert '<img src="/jobs/j1/artifacts/file/out/figures/a%20b.png?inline=1&amp;attempt=2" alt="loss"' in html
    assert 'href="/ui/jobs/j1/artifacts/view?path=p.csv&amp;attempt=2"' in html
    assert 'href="#"' in html, "nothing is above the artifacts"
    assert html.count("<img") == 1
    assert "logout" not in html.replace("[root](/ui/logout)", "")


def test_markdown_has_tasks_and_formulas():
    shown = str(read_markdown("- [x] *trained*\n- [ ] <b> $a_1 * b_2 < c$\n\nFrom $5 to $10, and $$\\sum_i x_i$$"))
    assert '<li class="task"><input type="checkbox" disabled aria-label="done" checked> <em>trained</em></li>' in shown
    assert 'aria-label="to do"> &lt;b&gt; <code class="math">$a_1 * b_2 &lt; c$</code></li>' in shown
    assert "From $5 to $10, and <code" in shown, "prices are no formulas"
    assert r'<code class="math">$$\sum_i x_i$$</code>' in shown


def test_markdown_has_no_html_no_foreign_images_and_no_scripts():
    html = read_markdown(
        "# Title\n\n<script>alert(1)</script> ![x](http://evil.example/i.png) [bad](javascript:alert(1)) "
        "[data](data:text/html,x) [same](/ui/logout) [good](https://example.org) \u202egnp\n\n|a|b|\n|-|-|\n|1|2|\n"
    )
    assert "<h1>Title</h1>" in html
    assert "<table>" in html
    assert "<script" not in html
    assert "<img" not in html
    assert "x (http://evil.example/i.png)" in html
    assert html.count("<a ") == html.count('rel="noreferrer nofollow"') == 1
    assert 'href="javascript' not in html
    assert "\u202e" not in html


def test_tensors_and_archives_show_their_headers():
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("config.json", "{}")
    header = json.dumps({"__metadata__": {}, "w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}).encode()
    [tensor] = look(struct.pack("<Q", len(header)) + header + bytes(24), "a.safetensors").parsed.entries
    assert (tensor.name, tensor.detail, tensor.size) == ("w", "F32 (2, 3)", 24)
    for name in ("a.keras", "a.npz"):
        assert [entry.name for entry in look(packed.getvalue(), name).parsed.entries] == ["config.json"]


@pytest.mark.parametrize("name", ["a.npy", "a.h5", "a.hdf5"])
def test_arrays_are_only_downloaded(name):
    for start in (b"\x93NUMPY\x01\x00v\x00{'descr': '<f4'}", b"PK\x03\x04\x14\x00", b"\x89HDF\r\n\x1a\n\x00"):
        assert look(start + bytes(100), name).kind == "none"


@pytest.mark.parametrize("suffix", [".safetensors", ".keras", ".zip", ".npz", ".pt"])
def test_a_damaged_header_is_no_preview(suffix):
    chance = random.Random(suffix)  # noqa: S311 - a repeatable test
    for start in (
        b"",
        b"PK\x05\x06",
        b"PK\x03\x04",
        struct.pack("<Q", 20),
        struct.pack("<Q", 2**63),
    ):
        for length in (0, 1, 30, 400):
            assert look(start + chance.randbytes(length), f"x{suffix}").kind == "none"


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def notebook(*cells):
    return look(json.dumps({"nbformat": 4, "cells": cells}).encode(), "a.ipynb")


def code(*outputs, source="run()"):
    return {"cell_type": "code", "source": source, "execution_count": 3, "outputs": outputs}


def result(**data):
    data = {name.replace("__", "/"): value for name, value in data.items()}
    return {"output_type": "execute_result", "data": data}


def test_a_notebook_has_cells_outputs_and_pictures():
    frame = "<table border=1><tr><th></th><th>a</th></tr><tr><th>0</th><td>1 &lt; 2</td></tr></table>"
    pictured = {"x.png": {"image/png": PIXEL}}
    text = {"cell_type": "markdown", "source": ["# Title\n", "![p](attachment:x.png)"], "attachments": pictured}
    stream = {"output_type": "stream", "name": "stdout", "text": ["\x1b[31mred\x1b[0m\n"]}
    error = {"output_type": "error", "ename": "E", "evalue": "bad", "traceback": ["\x1b[0;31mE\x1b[0m: bad"]}
    made = notebook(
        text,
        code(stream, error),
        code(result(image__png=PIXEL, text__plain="<Figure>")),
        code(result(text__html=frame)),
    )
    assert made.kind == "notebook"
    title, first, second, third = made.parsed
    assert title.html.startswith("<h1>Title</h1>")
    assert f'src="data:image/png;base64,{PIXEL}"' in title.html
    assert (first.number, first.source) == ("3", "run()")
    assert [(output.kind, output.shown) for output in first.outputs] == [("text", "red\n"), ("error", "E: bad")]
    assert [(output.kind, output.shown) for output in second.outputs] == [("picture", f"data:image/png;base64,{PIXEL}")]
    assert third.outputs[0].shown == [[("", True), ("a", True)], [("0", True), ("1 < 2", False)]]


@pytest.mark.parametrize(
    "notebook",
    [
        [],
        {},
        {"cells": 3},
        {"cells": [3]},
        {"cells": [{}]},
        {"cells": [{"cell_type": "code", "outputs": [3]}]},
        {"worksheets": []},
    ],
)
def test_what_is_no_notebook_is_text(notebook):
    assert look(json.dumps(notebook).encode(), "a.ipynb").kind == "text"


def test_nothing_of_a_notebook_runs_or_loads():
    script = "<script>alert(1)</script>"
    hostile = {"cell_type": "markdown", "source": f"{script}[a](javascript:b) ![c](https://d/e.png)"}
    made = notebook(
        hostile,
        {"cell_type": "raw", "source": script},
        code(result(application__javascript="alert(1)")),
        code(result(text__html=f"<table><tr><td>{script}</td><img src=x onerror=y></table>")),
        code(result(image__png="not base64 <b>", text__plain=script)),
        code(result(text__html=f"<b>{script}</b>")),
    )
    shown, raw, script_result, table, picture, html = made.parsed
    assert "<script" not in shown.html
    assert "<img" not in shown.html
    assert 'href="javascript' not in shown.html
    assert raw.html is None
    assert script_result.outputs[0].shown.startswith("A result of the type application/javascript")
    assert table.outputs[0].kind == "table"  # rows of text alone
    assert (picture.outputs[0].kind, picture.outputs[0].shown) == ("text", script)
    assert html.outputs[0].kind == "text"


def test_all_the_markdown_of_a_notebook_has_one_bound():
    dear = {"cell_type": "markdown", "source": "*a " * 20_000}
    made = notebook(*[dear] * 10)
    assert sum(cell.html is not None for cell in made.parsed) < 3
    assert made.parsed[9].source == dear["source"][:50_000]
