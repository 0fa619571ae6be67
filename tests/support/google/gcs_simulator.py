"""A simulator of Cloud Storage for tests, and stores in it."""

import itertools
from pathlib import Path

from google.cloud import storage
from support.google.gcs_faults import FaultyGcs

from core.settings import Settings
from core.settings.cloud import GcsSettings, StoreSettings
from core.storage.artifacts.store import DirectoryStore
from core.storage.buckets.artifacts import BucketStore
from core.storage.gcs.client import open_client

_bucket_numbers = itertools.count(1)


class GcsHarness:
    """The simulator as one test sees it."""

    def __init__(self, simulator: FaultyGcs) -> None:
        self.simulator = simulator
        self.settings = GcsSettings(endpoint=simulator.url, ca=simulator.ca)
        self.client: storage.Client = open_client(self.settings)

    def new_bucket(self, location: str = "us-central1") -> str:
        """A bucket of its own for one test."""
        name = f"test-bucket-{next(_bucket_numbers)}"
        self.client.create_bucket(name, location=location)
        return name

    def make_store(self, folder: Path, bucket: str | None = None, *, gives_links: bool = False) -> BucketStore:
        """A store over a bucket, with its staging in `folder/store`."""
        url = f"gs://{bucket or self.new_bucket()}/some/prefix"
        store = StoreSettings(url=url, signed_urls=gives_links)
        settings = Settings(home=folder, gcs=self.settings, store=store)
        return BucketStore.from_settings(settings, DirectoryStore(folder / "store"))

    def read_objects(self, bucket: str) -> dict[str, bytes]:
        """Name to content of everything in a bucket."""
        return {found.name: found.content for found in self.simulator.buckets.names(bucket)}

    def put_object(self, bucket: str, name: str, content: bytes = b"x") -> None:
        """An object, whatever its name."""
        self.simulator.buckets.put(bucket, name, content, {}, {})
