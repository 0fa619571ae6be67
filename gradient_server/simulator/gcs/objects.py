"""Buckets, objects and unfinished uploads, in memory."""

import base64
import hashlib
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import google_crc32c

_SETTABLE = {"contentType", "contentEncoding", "contentDisposition", "contentLanguage", "cacheControl", "metadata"}
_MAX_NAME_BYTES = 1024


class StorageError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


@dataclass(frozen=True, kw_only=True)
class StoredObject:
    bucket: str
    name: str
    content: bytes
    generation: int
    fields: Mapping[str, Any]  # set by the client: contentType, metadata and the like
    created: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def etag(self) -> str:
        return f"{self.generation}-1"

    @property
    def checksums(self) -> tuple[str, str]:
        """The CRC32C checksum and the MD5 digest in the API's format."""
        md5 = hashlib.md5(self.content, usedforsecurity=False).digest()
        return crc32c(self.content), base64.b64encode(md5).decode()

    def resource(self, base: str) -> dict[str, Any]:
        """Return the object's JSON representation. `base`: address of the API, such as `http://127.0.0.1:9000`."""
        path = f"/b/{self.bucket}/o/{quote(self.name, safe='')}"
        crc, md5 = self.checksums
        return {
            "contentType": "application/octet-stream",
            **self.fields,
            "id": f"{self.bucket}/{self.name}/{self.generation}",
            "selfLink": f"{base}/storage/v1{path}",
            "mediaLink": f"{base}/download/storage/v1{path}?generation={self.generation}&alt=media",
            "name": self.name,
            "bucket": self.bucket,
            "generation": str(self.generation),
            "metageneration": "1",
            "size": str(len(self.content)),
            "crc32c": crc,
            "md5Hash": md5,
            "etag": self.etag,
            "timeCreated": format_time(self.created),
            "updated": format_time(self.created),
        }


@dataclass
class Bucket:
    name: str
    fields: dict[str, Any]
    policy: dict[str, Any] = field(default_factory=lambda: {"version": 3, "bindings": []})
    objects: dict[str, StoredObject] = field(default_factory=dict)

    def resource(self) -> dict[str, Any]:
        location = str(self.fields.get("location") or "US").upper()
        kind = "multi-region" if location in {"US", "EU", "ASIA"} else "region"
        return {**self.fields, "id": self.name, "name": self.name, "location": location, "locationType": kind}


@dataclass
class Upload:
    bucket: str
    name: str
    fields: dict[str, Any]
    conditions: Mapping[str, str]
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    content: bytes = b""
    parts: dict[int, bytes] = field(default_factory=dict)  # by number, of an upload by the XML API


class BucketStore:
    """All buckets and unfinished uploads. Each call is atomic."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._buckets: dict[str, Bucket] = {}
        self._generation = 1_700_000_000_000_000
        self.uploads: dict[str, Upload] = {}

    def create(self, name: str, fields: dict[str, Any]) -> Bucket:
        with self._lock:
            if name in self._buckets:
                raise StorageError(409, f"Your previous request to create the named bucket {name!r} succeeded.")
            return self._buckets.setdefault(name, Bucket(name, fields))

    def bucket(self, name: str) -> Bucket:
        if (bucket := self._buckets.get(name)) is None:
            raise StorageError(404, f"The specified bucket does not exist: {name}.")
        return bucket

    def all(self) -> list[Bucket]:
        return [bucket for _, bucket in sorted(self._buckets.items())]

    def drop(self, name: str) -> None:
        del self._buckets[name]

    def get(self, bucket: str, name: str, conditions: Mapping[str, str] | None = None) -> StoredObject:
        stored = self.bucket(bucket).objects.get(name)
        wanted = (conditions or {}).get("generation")
        if stored is None or wanted not in {None, str(stored.generation)}:
            raise StorageError(404, f"No such object: {bucket}/{name}")
        _check(stored, conditions or {})
        return stored

    def names(self, bucket: str) -> list[StoredObject]:
        """List the objects of a bucket, ordered by the bytes of their names, as the API does."""
        with self._lock:
            return sorted(self.bucket(bucket).objects.values(), key=lambda stored: stored.name.encode())

    def put(
        self, bucket: str, name: str, content: bytes, fields: Mapping[str, Any], conditions: Mapping[str, str]
    ) -> StoredObject:
        # Only names that Google refuses; it accepts all others.
        if not name or len(name.encode()) > _MAX_NAME_BYTES or "\n" in name or "\r" in name or name in {".", ".."}:
            raise StorageError(400, f"Disallowed name for an object: {name!r}")
        kept = {key: value for key, value in fields.items() if key in _SETTABLE}
        with self._lock:
            objects = self.bucket(bucket).objects
            _check(objects.get(name), conditions)
            self._generation += 1
            objects[name] = StoredObject(
                bucket=bucket, name=name, content=content, generation=self._generation, fields=kept
            )
            return objects[name]

    def delete(self, bucket: str, name: str, conditions: Mapping[str, str]) -> None:
        with self._lock:
            self.get(bucket, name, conditions)
            del self.bucket(bucket).objects[name]

    def begin(self, bucket: str, name: str, fields: dict[str, Any], conditions: Mapping[str, str]) -> Upload:
        _check(self.bucket(bucket).objects.get(name), conditions)
        upload = Upload(bucket, name, fields, conditions)
        return self.uploads.setdefault(upload.id, upload)

    def finish(self, upload: Upload) -> StoredObject:
        self.uploads.pop(upload.id, None)
        return self.put(upload.bucket, upload.name, upload.content, upload.fields, upload.conditions)


def crc32c(content: bytes) -> str:
    """Return the CRC32C checksum in the API's format: big-endian, base64."""
    return base64.b64encode(google_crc32c.value(content).to_bytes(4, "big")).decode()


def format_time(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def _check(stored: StoredObject | None, conditions: Mapping[str, str]) -> None:
    expected = conditions.get("ifGenerationMatch")
    if expected is not None and int(expected) != (0 if stored is None else stored.generation):
        raise StorageError(412, "The pre-condition did not hold.")
