"""The lists of comparisons, schedules and sweeps, a page at a time."""

import re

import pytest
from support.live_service import make_job_body

from service.dashboard import comparison_pages
from service.dashboard.lists import template_pages

BODIES = {
    "comparisons": make_job_body(machineType="CPU,V100"),
    "schedules": make_job_body(cron="0 3 * * *"),
    "sweeps": {"space": {"x": "1,2"}, "metric": "loss:min", "method": "grid"},
}


@pytest.mark.parametrize("kind", BODIES)
def test_a_list_says_its_place_and_leads_to_the_pages_beside(signed_in_browser, client, monkeypatch, kind):
    monkeypatch.setattr(comparison_pages, "_PAGE_COMPARISONS", 2)
    monkeypatch.setattr(template_pages, "_PAGE", 2)
    for at in range(3):
        client.post(
            f"/{kind}", json=BODIES[kind] | ({} if kind == "sweeps" else {"name": f"<{at}>"})
        ).raise_for_status()

    def show(query=""):
        page = signed_in_browser.get(f"/ui/{kind}{query}").text
        place = re.search(r"data-count>([^<]*)<", page)
        return place and place[1], dict(re.findall(r'href="(\?[^"]*)" rel="(\w+)"', page)), page

    place, links, page = show()
    assert (place, links) == (f"1\N{EN DASH}2 of 3 {kind}", {"?at=3": "next"})
    if kind != "sweeps":
        assert page.index("&lt;2&gt;") < page.index("&lt;1&gt;"), "the newest first"
    assert show("?at=3")[:2] == (f"3\N{EN DASH}3 of 3 {kind}", {"?at=1": "prev"})
    assert f"No {kind} from here on." in show("?at=4")[2]
