"""Flat lists of paths, folder by folder."""

from datetime import UTC, datetime

from service.dashboard.outputs.folder_view import list_entries
from service.schemas.artifacts import ArtifactsPage, ArtifactView

AT = datetime(2026, 1, 1, tzinfo=UTC)


class Listing:
    """Answers as the API's list does, and counts how often it was asked."""

    def __init__(self, paths):
        self.paths = sorted(paths)
        self.asked = 0

    def below(self, folder):
        def read(after, limit):
            self.asked += 1
            found = [path for path in self.paths if path.startswith(folder) and (after is None or path > after)]
            files = [ArtifactView(path=path, size=1, sha256=None, modified=AT) for path in found[:limit]]
            following = found[limit - 1] if len(found) > limit else None
            return ArtifactsPage(
                state="complete", files=files, skipped=[], next=following, total_files=0, total_bytes=0
            )

        return read

    def all_entries(self, folder, limit):
        seen, after = [], None
        while True:
            found, after = list_entries(self.below(folder), folder, after=after, limit=limit)
            assert len(found) <= limit
            seen += [entry.path for entry in found]
            if after is None:
                return seen


def test_a_large_folder_is_passed_over_without_reading_it():
    listing = Listing([f"big/{number:06}" for number in range(20_000)] + ["small/a", "z"])
    found, following = list_entries(listing.below(""), "", after=None, limit=100)
    assert ([entry.path for entry in found], following) == (["big/", "small/", "z"], None)
    assert listing.asked == 2


def test_names_that_sort_after_everything_come_to_an_end():
    listing = Listing([f"a/\U0010ffff{number:04}" for number in range(500)] + ["b"])
    assert listing.all_entries("", 1) == ["a/", "b"]
