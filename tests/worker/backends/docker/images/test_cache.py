"""Images that jobs pulled are removed when nothing uses them; those that somebody else pulled never are."""

import json

import pytest
from support.backend_harness import BackendHarness
from support.constants import set_constants
from support.servers.private_docker_engine import SHELL_IMAGE

from core.settings.docker import ImageSettings
from worker.backends.docker.images.cache import ImageCache
from worker.backends.docker.images.records import ImageRecordsFile


@pytest.fixture
def brought(registry, make_image_store, make_unique_layers):
    """Images that jobs pulled, the first one used the longest ago."""
    place = make_image_store()
    names = []
    for number in (1, 2, 3):
        reference, _ = registry.add_image(f"team/old{number}:1", make_unique_layers())
        place.have(reference)
        names.append(reference)
    for reference in names:  # another use
        place.have(reference)
    set_constants({"worker.backends.docker.images.cache.UNUSED_TTL_SECONDS": 0})
    return place, names


def shelf(place, percent=50.0, **settings):
    measured = percent if callable(percent) else lambda _: percent
    images = ImageSettings(**{"max_disk_percent": 80.0} | settings)
    return ImageCache(place.engine, place.images, place.settings.model_copy(update={"images": images}), measured)


def pruned(of, *, everything=False, dry_run=False):
    return [one.reference for one in of.prune(everything=everything, dry_run=dry_run)]


def here(place, reference):
    return place.images.find(reference) is not None


def test_nothing_goes_while_there_is_room(brought):
    place, names = brought
    assert pruned(shelf(place)) == []
    assert place.recorded_names() == sorted(names)


def test_on_a_full_disk_the_longest_unused_goes_first_until_there_is_room(brought):
    place, names = brought
    percents = iter([95.0, 90.0, 79.0])
    assert pruned(shelf(place, lambda _: next(percents))) == names[:2]
    assert [here(place, name) for name in names] == [False, False, True]
    assert place.recorded_names() == names[2:]


@pytest.mark.parametrize("lacking", [("Created",), ("Created", "Metadata")])
def test_images_that_do_not_say_when_they_were_made_go_as_well(brought, monkeypatch, lacking):
    """Engines leave it out since version 1.44 of their API."""
    place, names = brought
    call = place.engine.call

    def call_new_engine(work):
        answer = call(work)
        for field in lacking if isinstance(answer, dict) else ():
            answer.pop(field, None)
        return answer

    monkeypatch.setattr(place.engine, "call", call_new_engine)
    assert pruned(shelf(place, 99.0)) == names


def test_what_somebody_else_brought_stays(brought, clean_engine):
    place, names = brought
    with clean_engine.client() as client:
        client.import_image_from_data(b"\0" * 1024, repository="operators", tag="own")
    place.have("operators:own")
    place.have(SHELL_IMAGE)
    assert pruned(shelf(place, 99.0)) == names
    assert here(place, "operators:own")
    assert here(place, SHELL_IMAGE)


def test_a_name_that_somebody_else_gave_keeps_the_image(brought, clean_engine):
    place, names = brought
    with clean_engine.client() as client:
        client.tag(names[0], "operators", "wanted")
    assert pruned(shelf(place, 99.0)) == names[1:]
    assert not here(place, names[0]), "our name for it goes"
    assert here(place, "operators:wanted")
    assert place.recorded_names() == []


def test_what_a_container_uses_stays_whether_it_runs_or_not(brought, clean_engine):
    place, names = brought
    with clean_engine.client() as client:
        made = client.create_container(names[0], ["/none"])["Id"]
        assert pruned(shelf(place, 99.0)) == names[1:]
        client.remove_container(made)
    assert pruned(shelf(place, 99.0)) == names[:1]


def test_what_was_used_lately_stays_and_a_use_counts_again(brought):
    place, names = brought
    set_constants({"worker.backends.docker.images.cache.UNUSED_TTL_SECONDS": 600})
    assert pruned(shelf(place, 99.0)) == []
    set_constants({"worker.backends.docker.images.cache.UNUSED_TTL_SECONDS": 0})
    place.have(names[0])
    assert pruned(shelf(place), everything=True, dry_run=True) == [*names[1:], names[0]]


def test_a_job_has_an_image_again_that_went_before_it_started(
    registry, clean_engine, tmp_path, make_unique_layers, monkeypatch
):
    """The image is removed between its pull and the container's creation, and is pulled once more."""
    place = BackendHarness("docker", tmp_path, clean_engine.settings(pull="missing"))
    reference, _ = registry.add_image("team/shell:1", [*_shell(clean_engine), *make_unique_layers()])
    launcher, removed = place.backend.launcher, []
    network = launcher.network.ensure

    def remove_first(*opened):
        if not removed:
            with clean_engine.client() as client:
                client.remove_image(reference)
            removed.append(reference)
        return network(*opened)

    monkeypatch.setattr(launcher.network, "ensure", remove_first)
    handle = place.launch(place.spec("exit 7", container=reference))
    assert place.wait(handle).code == 7
    assert removed == [reference]
    place.clear()


def _shell(server):
    """The shell's image as layers for a registry."""
    with server.client() as client:
        made = client.create_container(SHELL_IMAGE, ["/none"])["Id"]
        try:
            return [b"".join(client.export(made))]
        finally:
            client.remove_container(made)


def test_records_that_cannot_be_read_make_nothing_ours(tmp_path, caplog):
    file = ImageRecordsFile(tmp_path, "ABCD:EF/../x")
    assert [path.name for path in tmp_path.iterdir()] == []
    with file.open() as records:
        records.add("sha256:1", "a:1")
    [stored] = tmp_path.glob("*.json")
    assert stored.name == "ABCDEFx.json"
    assert json.loads(stored.read_text())["ours"] == {"sha256:1": ["a:1"]}
    stored.write_text('{"images": 3}')
    with file.open() as records:
        assert records.ours == {}
    assert "image_records_unreadable" in caplog.text
