import contextlib
from pathlib import Path

from obstore.store import AzureStore, S3Store

from core.settings import Settings
from core.settings.cloud import StoreSettings
from core.storage.artifacts.store import DirectoryStore
from core.storage.buckets.artifacts import BucketStore


class BucketHarness:
    """A bucket of one test's own at a server.

    Args:
        settings: Variables with which the service uses it.
        direct: A client that goes past all that a test spoils.
    """

    def __init__(self, settings: dict[str, str], direct: S3Store | AzureStore) -> None:
        self.settings = settings
        self._direct = direct

    @property
    def url(self) -> str:
        return self.settings["GRADIENT_STORE__URL"]

    def make_store(self, folder: Path, *, gives_links: bool = False) -> BucketStore:
        """A store over the bucket, with its staging in `folder/store`."""
        settings = Settings(home=folder, store=StoreSettings(url=self.url, signed_urls=gives_links))
        return BucketStore.from_settings(settings, DirectoryStore(folder / "store"))

    def read_objects(self, kind: str = "artifacts/") -> dict[str, bytes]:
        """Name below the prefix to content of everything of a kind in the bucket."""
        prefix = f"some/prefix/{kind}"
        objects = {}
        for one in self._direct.list(prefix).collect():
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                objects[one["path"].removeprefix(prefix)] = self._direct.get(one["path"]).bytes().to_bytes()
        return objects
