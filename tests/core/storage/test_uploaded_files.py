"""Rows of files whose bytes are in a bucket: their order, their replacement, and what is left of broken uploads."""

import io
from datetime import timedelta

import pytest
from sqlalchemy import select, update

from core.db.models.uploads import UploadedFile
from core.errors import SpecInvalid, StoreUnavailable
from core.jobs import projects
from core.storage.shared.folders import SharedStorage
from core.storage.shared.project_files import ProjectFiles
from core.storage.shared.uploaded_files import UploadedFiles


class Bucket:
    def __init__(self):
        self.objects = {}
        self.before_answer = lambda: None

    def put(self, name, file, path):
        del path
        self.objects[name] = file.read()
        self.before_answer()
        return self.objects[name].decode()

    def open(self, name):
        return io.BytesIO(self.objects[name]) if name in self.objects else None

    def sign(self, name, valid):
        del valid
        return f"https://bucket/{name}"

    def remove(self, names):
        for name in names:
            self.objects.pop(name, None)


@pytest.fixture
def bucket():
    return Bucket()


@pytest.fixture
def uploaded(database, bucket):
    return UploadedFiles(database, bucket)


@pytest.fixture
def project(database):
    with database.write() as session:
        return projects.get_or_create(session, "vision")[0].id


def store(uploaded, project, path, content="x"):
    uploaded.store(project, path, io.BytesIO(content.encode()), size=1, sha256=content, mtime_ms=0)


def test_lists_are_in_the_order_of_folders_and_names(uploaded, project, tmp_path):
    paths = ["b/2", "b-d", "b/c/3", "a", "b/1", "ü", "b/%FF"]
    for path in paths:
        store(uploaded, project, path)
    ordered = ["a", "b/%FF", "b/1", "b/2", "b/c/3", "b-d", "ü"]
    assert [one.path for one in uploaded.walk(project)] == ordered
    assert [one.path for one in uploaded.walk(project, "b", after="b/1")] == ["b/2", "b/c/3"]
    files = ProjectFiles(SharedStorage(tmp_path, uploaded), project)
    assert [one.path for one in files.page("").entries] == ["a", "b", "b-d", "ü"]
    assert [one.path for one in files.page("", after="a", limit=1).entries] == ["b"]
    assert [one.path for one in files.page("", after="b").entries] == ["b-d", "ü"]
    assert [one.path for one in files.page("b", recursive=True, after="b/2").entries] == ["b/c", "b/c/3"]
    assert uploaded.count(project) == (7, 7)


def test_a_folder_of_thousands_is_one_entry(uploaded, project, monkeypatch, tmp_path):
    monkeypatch.setattr("core.storage.shared.uploaded_files.BATCH", 3)
    for number in range(10):
        store(uploaded, project, f"many/{number}")
    store(uploaded, project, "z")
    files = ProjectFiles(SharedStorage(tmp_path, uploaded), project)
    assert [one.path for one in files.page("").entries] == ["many", "z"]
    assert len(list(uploaded.walk(project))) == 11


def test_a_file_is_replaced_and_a_folder_is_not(uploaded, bucket, project):
    store(uploaded, project, "a", "1")
    store(uploaded, project, "a", "2")
    assert list(bucket.objects.values()) == [b"2"]
    with pytest.raises(SpecInvalid, match="not a folder"):
        store(uploaded, project, "a/b")
    store(uploaded, project, "f/b")
    for refused in (lambda: store(uploaded, project, "f"), lambda: uploaded.check_path(project, "f")):
        with pytest.raises(SpecInvalid, match="is a folder"):
            refused()
    with pytest.raises(SpecInvalid, match="recursive"):
        uploaded.remove(project, "f", recursive=False)
    assert not uploaded.remove(project, "nothing", recursive=True)
    assert uploaded.remove(project, "f", recursive=True)
    assert {one.path for one in uploaded.walk(project)} == {"a"}


def test_what_broke_off_goes_after_a_day_and_never_gets_its_path_then(uploaded, bucket, database, project):
    def fail():
        raise StoreUnavailable("The bucket went away.")

    bucket.before_answer = fail
    with pytest.raises(StoreUnavailable):
        store(uploaded, project, "a")
    assert uploaded.remove_unnamed() == 0, "it may still be under way"

    def a_day_passes():
        with database.write() as session:
            for row in session.scalars(select(UploadedFile)).all():
                earlier = row.remove_at - timedelta(days=1, seconds=1)
                session.execute(update(UploadedFile).where(UploadedFile.id == row.id).values(remove_at=earlier))

    bucket.before_answer = a_day_passes
    with pytest.raises(StoreUnavailable, match="more than a day"):
        store(uploaded, project, "b")
    assert uploaded.remove_unnamed() == 2
    assert (bucket.objects, list(uploaded.walk(project))) == ({}, [])
