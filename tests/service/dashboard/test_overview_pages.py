"""The pages of projects and machine types, and the links to them."""

import re


def test_every_page_leads_to_the_others(signed_in_browser):
    for name, title in (("jobs", "Jobs"), ("projects", "Projects"), ("machines", "Machines")):
        page = signed_in_browser.get(f"/ui/{name}").text
        assert re.findall(r'<a href="(/ui/\w+)"(?: aria-current="page")?>\w+</a>', page)[:4] == [
            "/ui/jobs",
            "/ui/comparisons",
            "/ui/projects",
            "/ui/machines",
        ]
        assert f'<a href="/ui/{name}" aria-current="page">{title}</a>' in page
        assert page.count("aria-current") == 1
        assert 'data-live="yes"' in page
