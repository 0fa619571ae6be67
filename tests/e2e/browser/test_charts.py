"""The charts of a job in a real browser: values by pointer, tap and keys, scale, smoothing, zoom, downloads."""

import csv
import json
from itertools import pairwise

import pytest
from support.browser import Browser
from support.deployment import wait_until
from support.live_folder import find

TRAIN = """
exec python3 - <<'END'
import json, os, time
metrics = open(os.environ["GRADIENT_METRICS_FILE"], "a")
for step in range(10):
    values = {"loss": 10.0 ** -step, "train/error": 1.0 - step / 20, "val/error": 1.0 - step / 30}
    print(json.dumps({"step": step, "time": time.time(), **values}), file=metrics, flush=True)
    time.sleep(0.01)  # each point has a time of its own
while not os.path.exists(os.path.join(os.environ["GRADIENT_WORKSPACE_DIR"], "end")):
    time.sleep(0.01)
END
"""
LOSS = "[...document.querySelectorAll('.chart')].find(chart => chart.innerText.startsWith('loss'))"
ERROR = LOSS.replace("'loss'", "'error'")
BAR = "document.querySelector('.lit-row:not([hidden])')"
REFUSE_FIRST = """
const request = window.fetch;
window.fetch = (address, options) => {
  if (!String(address).includes("/metrics")) return request(address, options);
  window.fetch = request;
  return Promise.resolve(new Response("", {status: 503}));
};
"""
KEEP_DOWNLOADS = """
window.saved = {};
URL.createObjectURL = (blob) => { window.blob = blob; return 'blob:test'; };
HTMLAnchorElement.prototype.click = function () { window.saved[this.download] = window.blob; };
"""


@pytest.fixture(params=[(1440, 900), pytest.param((390, 844), marks=pytest.mark.slow)], ids=["wide", "narrow"])
def browser(request, chromium, service):
    browser = Browser(chromium, size=request.param)
    browser.sign_in(service.cli_json["url"], service.cli_json["apiKey"])
    browser.messages.clear()  # the hint about fields for user names
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def trained(service):
    """A job that has ended."""
    job_id = service.submit(TRAIN, name="trained", params={"seed": 1})
    wait_until(lambda: service.job(job_id)["state"] == "Running", "it to run")
    let_end(service, job_id)
    assert service.wait_ended(job_id)["state"] == "Stopped"
    return job_id


def let_end(service, job_id):
    next(find(service.home / "attempts" / f"{job_id}-1", "workspace")).joinpath("end").touch()


def end(service, browser, job_id):
    let_end(service, job_id)
    browser.wait_for("document.querySelector('.badge').innerText === 'Succeeded'")


def set_option(browser, name, value):
    field = f"document.querySelector('[data-chart-options] [name={name}]')"
    event = "dispatchEvent(new Event('input', {bubbles: true}))"
    browser.evaluate(f"{field}.value = {json.dumps(value)}; {field}.{event}")


def test_charts_of_an_ended_job_appear_once_the_server_answers(service, browser, trained):
    browser.hurry()
    browser("Page.addScriptToEvaluateOnNewDocument", source=REFUSE_FIRST)
    browser.open(f"{service.cli_json['url']}/ui/jobs/{trained}/metrics")
    browser.wait_for(LOSS)


def test_values_are_read_by_tap_and_by_keys_and_drawn_to_scale(service, browser):
    job_id = service.submit(TRAIN, name="trains")
    browser.open(f"{service.cli_json['url']}/ui/jobs/{job_id}/metrics")
    names = "[...document.querySelectorAll('.system-charts .chart-name')].map(one => one.innerText)"
    browser.wait_for(f"{LOSS} && {names}.includes('memory')")
    end(service, browser, job_id)
    value = f"{LOSS}.querySelector('.chart-value').innerText"
    browser.wait_for(f"{value} === '1e-09'")
    assert browser.evaluate(f"{LOSS}.querySelector('.chart-legend').innerText").split("\n") == [
        "min 1e-09",
        "max 1",
    ]
    # A tap shows the value, also after the finger is gone.
    browser.evaluate(f"{LOSS}.scrollIntoView()")
    browser.wait_for(f"{LOSS}.chart.plot")
    box = browser.evaluate(f"(b => [b.left, b.top])({LOSS}.querySelector('.u-over').getBoundingClientRect())")
    point = {"x": box[0] + 3, "y": box[1] + 20}
    browser("Input.dispatchTouchEvent", type="touchStart", touchPoints=[point])
    browser("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    browser.wait_for(f"{value} === 'step 0: 1'")
    browser.evaluate(f"{LOSS}.querySelector('.chart-plot').focus()")
    browser("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight")
    browser.wait_for(f"{value} === 'step 1: 0.1'")
    assert browser.evaluate(f"{LOSS}.querySelector('[aria-live]').innerText") == "step 1: 0.1"
    assert browser.evaluate(f"{LOSS}.querySelector('.chart-tip').innerText") == "step 1\n0.1"
    browser.evaluate("document.activeElement.blur()")
    browser.wait_for(f"{value} === '1e-09'")
    # The logarithms of the values are a straight line.
    browser.click("[data-chart-options] [name=log]")
    ys = browser.evaluate(f"(p => p.data[1].map(value => p.valToPos(value, 'y')))({LOSS}.chart.plot)")
    assert [round(one - before, 1) for before, one in pairwise(ys)] == pytest.approx([ys[1] - ys[0]] * 9, abs=0.11)
    assert ys[1] > ys[0]
    browser.click("[data-chart-options] [name=log]")
    assert browser.evaluate(f"{LOSS}.chart.plot.scales.y.distr") == 1
    set_option(browser, "smooth", "0.9")
    raw, smooth = browser.evaluate(f"{LOSS}.chart.plot.data.slice(1)")
    assert raw == [10.0**-step for step in range(10)]
    assert (smooth[0], smooth[-1] > raw[-1]) == (1.0, True)
    assert browser.evaluate(f"{LOSS}.chart.plot.series[1].alpha") == 0.3
    assert browser.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert browser.messages == []


def test_a_range_is_loaded_again_and_the_address_has_every_option(service, browser, trained):
    browser.open(f"{service.cli_json['url']}/ui/jobs/{trained}/metrics?log=1&smooth=0.6&x=relative")
    browser.wait_for(f"{LOSS}?.chart.plot && {ERROR}?.chart.plot")
    browser.wait_for(f"{LOSS}.chart.plot.data[0].length === 10")
    assert browser.evaluate(f"[{LOSS}.chart.axis, {LOSS}.chart.plot.scales.y.distr]") == ["relative", 3]
    assert browser.evaluate("document.querySelector('[name=smooth]').value") == "0.6"
    # Both splits are in one chart, and another axis is kept in the address.
    assert "train/error" in browser.evaluate(f"{ERROR}.innerText")
    assert "val/error" in browser.evaluate(f"{ERROR}.innerText")
    set_option(browser, "x", "step")
    set_option(browser, "smooth", "0")
    browser.click("[name=log]")
    assert browser.evaluate("location.search") == ""
    plot = f"{ERROR}.chart.plot"
    browser.evaluate(f"{ERROR}.scrollIntoView()")
    box = browser.evaluate(f"(b => [b.left, b.top])({plot}.over.getBoundingClientRect())")
    ends = browser.evaluate(f"[{plot}.valToPos(2.6, 'x'), {plot}.valToPos(6.4, 'x')]")
    for kind, x in [
        ("mouseMoved", ends[0]),
        ("mousePressed", ends[0]),
        ("mouseMoved", ends[1]),
        ("mouseReleased", ends[1]),
    ]:
        mouse = {"x": box[0] + x, "y": box[1] + 30, "button": "left", "clickCount": 1}
        browser("Input.dispatchMouseEvent", type=kind, **mouse)
    browser.wait_for(f"JSON.stringify({plot}.data[0]) === '[3,4,5,6]'")
    assert browser.evaluate(f"{LOSS}.chart.plot.data[0]") == [3, 4, 5, 6]
    assert browser.evaluate("['from', 'to'].map(n => Math.round(new URL(location).searchParams.get(n)))") == [3, 6]
    # The address alone leads to the same range.
    browser.open(browser.evaluate("location.href"))
    browser.wait_for(f"JSON.stringify({plot}?.data[0]) === '[3,4,5,6]'")
    browser.evaluate(f"{plot}.over.dispatchEvent(new MouseEvent('dblclick', {{button: 0, bubbles: true}}))")
    browser.wait_for(f"{plot}.data[0].length === 10 && location.search === ''")
    assert browser.messages == []


def touch(browser, kind, *xs):
    top = browser.evaluate(f"{LOSS}.chart.plot.over.getBoundingClientRect().top") + 30
    left = browser.evaluate(f"{LOSS}.chart.plot.over.getBoundingClientRect().left")
    points = [{"x": left + x, "y": top, "id": finger} for finger, x in enumerate(xs)]
    browser("Input.dispatchTouchEvent", type=kind, touchPoints=points)


def test_fingers_zoom_and_move_the_range(service, browser, trained):
    browser.open(f"{service.cli_json['url']}/ui/jobs/{trained}/metrics")
    browser.wait_for(f"{LOSS}?.chart.plot")
    browser.wait_for(f"{LOSS}.chart.plot.data[0].length === 10")
    browser.evaluate(f"{LOSS}.scrollIntoView()")
    shown = f"(s => [s.min, s.max])({LOSS}.chart.plot.scales.x)"
    steps = f"JSON.stringify({LOSS}.chart.plot.data[0])"

    def at(step):
        return browser.evaluate(f"{LOSS}.chart.plot.valToPos({step}, 'x')")

    # Two fingers pull steps 3.4 and 5.6 apart, to where 0.9 and 8.1 were: 4.5 stays, the range is 2.2 / 7.2 of it.
    ends = at(0.9), at(8.1)
    touch(browser, "touchStart", at(3.4))
    touch(browser, "touchStart", at(3.4), at(5.6))
    touch(browser, "touchMove", *ends)
    browser.wait_for(f"{shown}[0] > 2.9 && {shown}[1] < 6.1")
    # Not exactly: the labels of the y axis change, and with them the width of the plot.
    assert browser.evaluate(shown) == pytest.approx([3.125, 5.875], abs=0.2)
    touch(browser, "touchEnd")
    browser.wait_for(f"{steps} === '[4,5]'")
    assert browser.evaluate("new URL(location).searchParams.has('from')")
    # One finger moves the range, by what one and a half steps are wide now, to the left.
    browser.wait_for(f"{LOSS}.chart.zoomed")
    begin, finish = at(5), at(4)
    touch(browser, "touchStart", begin)
    touch(browser, "touchMove", (begin + finish) / 2)
    touch(browser, "touchMove", finish)
    touch(browser, "touchEnd")
    browser.wait_for(f"{steps} === '[5,6]'")
    # Pinching past everything shows all again.
    width = browser.evaluate(f"{LOSS}.chart.plot.over.clientWidth")
    touch(browser, "touchStart", width * 0.02)
    touch(browser, "touchStart", width * 0.02, width * 0.98)
    touch(browser, "touchMove", width * 0.455, width * 0.545)
    touch(browser, "touchEnd")
    browser.wait_for(f"{LOSS}.chart.plot.data[0].length === 10 && location.search === ''")
    assert browser.messages == []


def test_names_of_runs_are_not_drawn_into_their_charts(service, browser, trained):
    browser.open(f"{service.cli_json['url']}/ui/runs?ids={trained}")
    chart = LOSS.replace("'loss'", "'val/error'")
    browser.wait_for(f"{chart}?.chart.plot")
    browser.evaluate("""{
        const draw = CanvasRenderingContext2D.prototype.fillText;
        window.drawn = [];
        CanvasRenderingContext2D.prototype.fillText = function (text, ...position) {
            window.drawn.push(text);
            draw.call(this, text, ...position);
        };
    }""")
    browser.evaluate(f"{chart}.chart.plot.redraw()")
    browser.wait_for("window.drawn.length > 0")
    assert "trained" not in browser.evaluate("window.drawn")


def is_lit(job_id):
    top = "{}.getBoundingClientRect().top".format
    return f"{BAR} && Math.abs({top(BAR)} - {top(f'document.querySelector(`[data-run={job_id}]`)')}) < 1"


def test_runs_are_lit_hidden_sorted_and_grouped_together(service, browser, trained):
    one_value = TRAIN.replace("1.0 -", "2.0 -").replace("metrics = open", "values = {'batch': 32}; metrics = open")
    one_value = one_value.replace("for step", "print(json.dumps(values), file=metrics)\nfor step")
    other = service.submit(one_value, name="run-1", params={"seed": 2})
    browser.open(f"{service.cli_json['url']}/ui/jobs/{other}")
    browser.wait_for("document.querySelector('.badge').innerText === 'Running'")
    end(service, browser, other)
    browser.open(f"{service.cli_json['url']}/ui/compare?ids={trained},{other}")
    assert browser.evaluate("location.pathname") == "/ui/jobs", "old addresses lead here"
    chart = LOSS.replace("'loss'", "'val/error'")
    browser.wait_for(chart)
    browser.evaluate(f"{chart}.scrollIntoView()")
    browser.wait_for(f"{chart}?.chart.plot?.data.length === 3 && {chart}.chart.plot.data[0].length === 10")
    assert browser.text(".singles tbody").split() == ["batch", "32"], "no chart of one dot"
    row = "document.querySelector('[data-run=\"{}\"]')".format
    # A row lights its curve, and a curve its row; beside the cursor are all runs, sorted, the lit one bold.
    browser.evaluate(f"{row(other)}.querySelector('a').dispatchEvent(new Event('pointerover', {{bubbles: true}}))")
    browser.wait_for(f"{chart}.querySelector('.chart-lit') && {chart}.chart.lit === 1 && {is_lit(other)}")
    browser.evaluate(f"{chart}.querySelector('.chart-plot').focus()")
    browser("Input.dispatchKeyEvent", type="keyDown", key="ArrowLeft")
    tip = f"{chart}.querySelector('.chart-tip')"
    browser.wait_for(f"{tip}?.innerText.split('\\n').length === 3")
    assert browser.evaluate(f"{tip}.innerText").split("\n") == ["step 8", "1.73 run-1", "0.733 trained"]
    assert browser.evaluate(f"{tip}.querySelector('.nearest').innerText") == "1.73 run-1"
    browser.evaluate("document.activeElement.blur()")
    browser.evaluate(f"{chart}.chart.onLight(0); scrollBy(0, -40)")
    browser.wait_for(is_lit(trained))
    # An eye hides curves; a head sorts without loading the page, and the address has it all.
    browser.evaluate("window.stays = true")
    browser.click(f"[data-run={trained}] .eye")
    browser.wait_for(f"{chart}.chart.series.length === 1 && {chart}.chart.series[0].run === 1")
    first = "document.querySelector('[data-runs-table] tbody tr').dataset.run"
    error_head = "[...document.querySelectorAll('thead th')].find(one => one.innerText.startsWith('val/error'))"
    for order, best in (("ascending", trained), ("descending", other)):
        browser.evaluate(f"{error_head}.querySelector('a').click()")
        browser.wait_for(f"{error_head}.ariaSort === '{order}' && {first} === '{best}'")
    assert browser.evaluate("window.stays && new URL(location).searchParams.get('sort')") == "-metric.val/error"
    assert browser.evaluate("new URL(location).searchParams.get('hide')") == trained
    assert browser.evaluate(f"{row(trained)}.querySelector('td.best') !== null")
    browser.open(browser.evaluate("location.href"))
    browser.wait_for(f"{chart}?.chart.plot?.data.length === 2 && {first} === '{other}'")
    browser.evaluate(f"{row(trained)}.querySelector('.eye').click()")
    # Grouped by a parameter: a mean curve with its spread for each group, and a row of means.
    set_option(browser, "group", "seed")
    browser.evaluate(f"{chart}.scrollIntoView()")
    browser.wait_for(f"{chart}.chart.plot.data.length === 7 && {chart}.querySelector('.chart-plot canvas')")
    rows = browser.evaluate("[...document.querySelectorAll('[data-groups] tbody tr')].map(row => row.innerText)")
    assert [row.split()[:2] for row in rows] == [["1", "1"], ["2", "1"]]
    browser.evaluate(
        "document.querySelector('[data-group=\"1\"]').dispatchEvent(new Event('pointerover', {bubbles: true}))"
    )
    browser.wait_for(f"document.querySelector('[data-group=\"1\"].lit') && !{BAR}")
    assert "group=seed" in browser.evaluate("location.search")
    # A pinned chart comes first.
    browser.evaluate(f"{chart}.querySelector('.chart-tools button').click()")
    browser.wait_for(f"document.querySelector('.run-curves .chart') === {chart}")
    assert browser.evaluate("new URL(location).searchParams.get('pin')") == "val/error"
    assert browser.messages == []


def test_the_page_is_laid_out_once_for_each_move_of_the_mouse_over_a_chart(service, browser, trained):
    browser.open(f"{service.cli_json['url']}/ui/jobs?ids={trained}&charts=1")
    chart = LOSS.replace("'loss'", "'val/error'")
    browser.wait_for(f"{chart}?.chart.plot?.data[0].length === 10")
    browser.evaluate(f"{chart}.scrollIntoView()")
    left, top = browser.evaluate(f"(b => [b.left, b.top])({chart}.querySelector('.u-over').getBoundingClientRect())")
    browser("Performance.enable")

    def count_layouts():
        return next(
            one["value"] for one in browser("Performance.getMetrics")["metrics"] if one["name"] == "LayoutCount"
        )

    frame = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
    for move in range(10):
        browser("Input.dispatchMouseEvent", type="mouseMoved", x=left + 10 + 20 * move, y=top + 20)
        browser.evaluate(frame)
        if move == 0:
            before = count_layouts()
    assert browser.evaluate(f"{chart}.querySelector('.chart-tip').innerText.startsWith('step')")
    assert count_layouts() - before < 2 * 9


def test_labels_of_panels_are_whole_and_of_three_digits(service, browser):
    command = """echo '{"loss": %s}' >> $GRADIENT_METRICS_FILE"""
    params = [{"lr": 0.0025947, "kind": "gradient descent"}, {"lr": 0.0333784, "kind": "a"}, {"lr": 3.5651e-5}]
    ids = [service.submit(command % (one["lr"] / -3), params=one) for one in params]
    for job_id in ids:
        service.wait_ended(job_id)
    browser.open(f"{service.cli_json['url']}/ui/jobs?ids={','.join(ids)}&charts=1")
    browser.wait_for("document.querySelectorAll('.panel svg').length === 2")
    labels = browser.evaluate("""[...document.querySelectorAll(".panel svg text")].map((label) => {
        const [inner, outer] = [label, label.closest("svg")].map((box) => box.getBoundingClientRect());
        const isInside = inner.left >= outer.left && inner.right <= outer.right && inner.top >= outer.top;
        return [label.textContent, isInside && inner.bottom <= outer.bottom];
    })""")
    assert [text for text, is_inside in labels if not is_inside] == []
    assert {"3.57e-05", "0.0334", "-0.0111", "-1.19e-05", "gradient desc…"} <= {text for text, _ in labels}


def test_a_chart_is_saved_as_a_table_and_as_an_image(service, browser, trained):
    browser.open(f"{service.cli_json['url']}/ui/jobs/{trained}/metrics")
    browser.wait_for(f"{ERROR}?.chart.plot")
    browser.wait_for(f"{ERROR}.chart.plot.data[0].length === 10")
    browser.evaluate(KEEP_DOWNLOADS)
    for button in ("CSV", "PNG"):
        browser.evaluate(f"[...{ERROR}.querySelectorAll('button')].find(one => one.innerText === '{button}').click()")
    browser.wait_for("window.saved['error.csv'] && window.saved['error.png']")
    lines = browser.evaluate("window.saved['error.csv'].text()").splitlines()
    assert lines[0] == '"step","train/error","val/error"'
    assert (len(lines), lines[1]) == (11, "0,1,1")
    assert browser.evaluate("window.saved['error.png'].type") == "image/png"
    assert browser.evaluate("window.saved['error.png'].size") > 1000


@pytest.mark.parametrize("browser", [(1440, 900)], indirect=True, ids=["wide"])  # a telephone does not offer it
def test_the_table_of_runs_is_saved_with_its_numbers_and_without_formulas(service, browser):
    ids = [service.submit("true", name="=1+1", params=params) for params in ({"bias": -0.5}, {"bias": -2}, {})]
    browser.open(f"{service.cli_json['url']}/ui/jobs?ids={','.join(ids)}&cols=params.bias&charts=1")
    browser.wait_for("document.querySelector('.eye').style.color")
    browser.evaluate(KEEP_DOWNLOADS)
    browser.click("[data-csv]")
    browser.wait_for("window.saved['runs.csv']")
    rows = list(csv.reader(browser.evaluate("window.saved['runs.csv'].text()").splitlines()))
    assert [(row[0], row[-1]) for row in rows] == [("Job", "bias"), ("'=1+1", "-0.5"), ("'=1+1", "-2"), ("'=1+1", "")]


def test_charts_take_the_colours_of_the_theme(service, browser, trained):
    browser.open(f"{service.cli_json['url']}/ui/jobs/{trained}/metrics")
    browser.wait_for(f"{LOSS} && {LOSS}.chart.plot")
    pixels = (
        f"(c => [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data])({LOSS}.querySelector('canvas'))"
    )
    drawn = {}
    for theme in ("light", "dark"):
        browser.wait_for(
            f"document.documentElement.dataset.theme === '{theme}' || "
            "(document.querySelector('[data-switch=theme]').click(), false)"
        )
        browser.wait_for(f"{LOSS}.chart.plot.axes[0].stroke().startsWith('rgb(')")
        values = browser.evaluate(pixels)
        drawn[theme] = {tuple(values[at : at + 3]) for at in range(0, len(values), 4) if values[at + 3] == 255}
    assert drawn["light"] != drawn["dark"]
    assert (0, 0, 0) not in drawn["light"] | drawn["dark"], "a colour that the canvas did not understand"


def test_charts_stand_side_by_side_unless_many_share_a_prefix(service, browser):
    values = {"a/one": 1, "a/two": 2, "a/three": 3, "b/one": 4}
    lines = "".join(json.dumps({"step": step} | values) + "\n" for step in range(3))
    job_id = service.submit(f"printf '%s' '{lines}' >> $GRADIENT_METRICS_FILE")
    service.wait_ended(job_id)
    browser.open(f"{service.cli_json['url']}/ui/jobs/{job_id}/metrics")
    browser.wait_for("document.querySelectorAll('.job-charts .chart').length === 4")
    heads = "[...document.querySelectorAll('.job-charts h3')].filter(one => one.checkVisibility())"
    assert browser.evaluate(f"{heads}.map(one => one.innerText)") == ["a"]
    last = "[...document.querySelectorAll('.chart')].find(one => one.innerText.startsWith('b/one'))"
    browser.evaluate(f"{last}.scrollIntoView()")
    browser.wait_for(f"{last}.chart.plot?.axes[0].label === 'step'")
    right, bottom = browser.evaluate(f"""(chart => {{
        const [card, value, legend] = [chart, chart.querySelector(".chart-value"), chart.querySelector(".chart-legend")]
            .map((one) => one.getBoundingClientRect());
        return [card.right - value.right, card.bottom - legend.bottom];
    }})({last})""")
    assert 0 < right < 12, "the last value is at the right edge"
    assert bottom > 0, "the legend is in the card"
    # One value on an axis of times is not lost in years.
    browser.evaluate(f"""(({{ chart }}) => {{
        const [one] = chart.series;
        chart.update([{{ ...one, points: one.points.slice(0, 1) }}], {{ ...chart.options, x: "time" }});
    }})({last})""")
    browser.wait_for(f"{last}.chart.plot.scales.x.max - {last}.chart.plot.scales.x.min === 2")
    assert browser.messages == []
