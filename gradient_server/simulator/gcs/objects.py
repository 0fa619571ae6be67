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

CHUNK = 256 * 1024  # an unfinished upload keeps a multiple of this many bytes, as at Google


class StorageError(Exception):
    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message


@dataclass(frozen=True, kw_only=True)
class StoredObject:
    bucket: str
    name: str
    content: bytes
    generation: int
    created: datetime
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields set by the client: contentType, metadata, cacheControl and the like."""

    @property
    def crc32c(self) -> str:
        """The CRC32C checksum in the API's format."""
        return crc32c(self.content)

    @property
    def md5(self) -> str:
        """The MD5 digest in the API's format."""
        return base64.b64encode(hashlib.md5(self.content, usedforsecurity=False).digest()).decode()

    def resource(self, base: str) -> dict[str, Any]:
        """Return the object's JSON representation. `base`: address of the API, such as `http://127.0.0.1:9000`."""
        path = f"/b/{self.bucket}/o/{quote(self.name, safe='')}"
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
            "crc32c": self.crc32c,
            "md5Hash": self.md5,
            "etag": f"{self.generation}-1",
            "timeCreated": _time(self.created),
            "updated": _time(self.created),
        }


@dataclass
class Bucket:
    name: str
    fields: dict[str, Any]
    created: datetime
    policy: dict[str, Any] = field(default_factory=lambda: {"version": 3, "bindings": []})
    objects: dict[str, StoredObject] = field(default_factory=dict)

    def resource(self) -> dict[str, Any]:
        location = str(self.fields.get("location") or "US").upper()
        multi = location in {"US", "EU", "ASIA"}
        return {
            **self.fields,
            "id": self.name,
            "name": self.name,
            "location": location,
            "locationType": "multi-region" if multi else "region",
            "storageClass": "STANDARD",
            "timeCreated": _time(self.created),
            "updated": _time(self.created),
        }


@dataclass
class ResumableUpload:
    id: str
    bucket: str
    name: str
    fields: dict[str, Any]
    conditions: Mapping[str, str]
    content: bytearray = field(default_factory=bytearray)
    parts: dict[int, bytes] = field(default_factory=dict)  # by number, of an upload by the XML API


class BucketStore:
    """All buckets and unfinished uploads. Each call is atomic."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._buckets: dict[str, Bucket] = {}
        self._uploads: dict[str, ResumableUpload] = {}
        self._generation = 1_700_000_000_000_000

    def create(self, name: str, fields: dict[str, Any]) -> Bucket:
        with self._lock:
            if name in self._buckets:
                raise StorageError(
                    409, "conflict", f"Your previous request to create the named bucket {name!r} succeeded."
                )
            self._buckets[name] = Bucket(name, fields, datetime.now(UTC))
            return self._buckets[name]

    def bucket(self, name: str) -> Bucket:
        with self._lock:
            if name not in self._buckets:
                raise StorageError(404, "notFound", f"The specified bucket does not exist: {name}.")
            return self._buckets[name]

    def all(self) -> list[Bucket]:
        with self._lock:
            return [self._buckets[name] for name in sorted(self._buckets)]

    def drop(self, name: str, *, force: bool = False) -> None:
        with self._lock:
            if self.bucket(name).objects and not force:
                raise StorageError(409, "conflict", "The bucket you tried to delete is not empty.")
            del self._buckets[name]

    def get(self, bucket: str, name: str, conditions: Mapping[str, str] | None = None) -> StoredObject:
        with self._lock:
            found = self.bucket(bucket).objects.get(name)
            wanted = (conditions or {}).get("generation")
            if found is None or (wanted is not None and wanted != str(found.generation)):
                raise StorageError(404, "notFound", f"No such object: {bucket}/{name}")
            _check(found, conditions or {})
            return found

    def names(self, bucket: str) -> list[StoredObject]:
        """List the objects of a bucket, ordered by the bytes of their names, as the API does."""
        with self._lock:
            return sorted(self.bucket(bucket).objects.values(), key=lambda found: found.name.encode())

    def put(
        self, bucket: str, name: str, content: bytes, fields: Mapping[str, Any], conditions: Mapping[str, str]
    ) -> StoredObject:
        _check_name(name)
        expected = fields.get("crc32c")
        if expected is not None and expected != crc32c(content):
            raise StorageError(
                400, "invalid", f"Provided CRC32C {expected} doesn't match calculated {crc32c(content)}."
            )
        with self._lock:
            objects = self.bucket(bucket).objects
            _check(objects.get(name), conditions)
            self._generation += 1
            kept = {key: value for key, value in fields.items() if key in _SETTABLE}
            objects[name] = StoredObject(
                bucket=bucket,
                name=name,
                content=content,
                generation=self._generation,
                created=datetime.now(UTC),
                fields=kept,
            )
            return objects[name]

    def delete(self, bucket: str, name: str, conditions: Mapping[str, str]) -> None:
        with self._lock:
            found = self.get(bucket, name, {key: conditions[key] for key in conditions if key == "generation"})
            _check(found, conditions)
            del self.bucket(bucket).objects[name]

    def begin(self, bucket: str, name: str, fields: dict[str, Any], conditions: Mapping[str, str]) -> ResumableUpload:
        _check_name(name)
        with self._lock:
            _check(self.bucket(bucket).objects.get(name), conditions)
            upload = ResumableUpload(uuid.uuid4().hex, bucket, name, fields, conditions)
            self._uploads[upload.id] = upload
            return upload

    def upload(self, upload_id: str) -> ResumableUpload:
        with self._lock:
            if upload_id not in self._uploads:
                raise StorageError(404, "notFound", "No such upload.")
            return self._uploads[upload_id]

    def finish(self, upload: ResumableUpload) -> StoredObject:
        with self._lock:
            self._uploads.pop(upload.id, None)
            return self.put(upload.bucket, upload.name, bytes(upload.content), upload.fields, upload.conditions)

    def cancel(self, upload_id: str) -> None:
        with self._lock:
            self._uploads.pop(upload_id, None)


_SETTABLE = {"contentType", "contentEncoding", "contentDisposition", "contentLanguage", "cacheControl", "metadata"}
_MAX_NAME_BYTES = 1024


def crc32c(content: bytes) -> str:
    """Return the CRC32C checksum in the API's format: big-endian, base64."""
    return base64.b64encode(google_crc32c.value(content).to_bytes(4, "big")).decode()


def _check(found: StoredObject | None, conditions: Mapping[str, str]) -> None:
    expected = conditions.get("ifGenerationMatch")
    if expected is not None and int(expected) != (0 if found is None else found.generation):
        raise StorageError(412, "conditionNotMet", "The pre-condition did not hold.")


def _check_name(name: str) -> None:
    # Only names that Google refuses; it accepts all others.
    if not name or len(name.encode()) > _MAX_NAME_BYTES or "\n" in name or "\r" in name or name in {".", ".."}:
        raise StorageError(400, "invalid", f"Disallowed name for an object: {name!r}")


def _time(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
