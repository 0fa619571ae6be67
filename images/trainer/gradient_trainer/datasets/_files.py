"""Images in files of the user's: folders of images, the same in a .zip, and TFRecord files."""

import functools
import hashlib
import io
import itertools
import json
import os
import shutil
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from gradient_trainer.datasets import DataSet, EncodedImages
from gradient_trainer.errors import DataSetError
from gradient_trainer.training.framework_import import import_tensorflow

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
PARTS = {"train": ("train",), "test": ("test", "val", "validation")}
"""The part of a data set → the names of its folder, or the beginnings of its TFRecord files' names."""
DEFAULT_EPOCHS = 10
_BLOCK = 1024

Read = Callable[[], bytes]

VERSION = 1  # part of every key; another number makes older caches unused
_FACTS = "facts.json"
# Keys of TFRecord files: of TensorFlow's ImageNet scripts, and of TensorFlow Datasets.
IMAGE_KEYS = ("image/encoded", "image")
LABEL_KEYS = ("image/class/label", "label")


def cache_key(files: Iterable[Path], preprocessing: dict[str, Any]) -> str:
    """Return the key of a data set: its files' names, sizes and times of change, and how they are decoded."""
    digest = hashlib.sha256(json.dumps([VERSION, preprocessing], sort_keys=True).encode())
    for path in sorted(files):
        status = path.stat()
        digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return digest.hexdigest()[:32]


class ImageCache:
    """The decoded images of one data set in one folder. `key`: see `cache_key`."""

    def __init__(self, folder: Path, key: str) -> None:
        self.path = folder / key

    def exists(self) -> bool:
        return (self.path / _FACTS).is_file()

    def read(self, part: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
        """Map the images of a part into memory, for reading, and read its labels."""
        images = np.load(self.path / f"x_{part}.npy", mmap_mode="c")
        return images, np.load(self.path / f"y_{part}.npy")

    def facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads((self.path / _FACTS).read_text())
        return facts


class CacheWriter:
    """Fills a cache; nothing of it is visible before `commit`. As a context manager it removes the rest."""

    def __init__(self, cache: ImageCache) -> None:
        self._cache = cache
        try:
            cache.path.parent.mkdir(parents=True, exist_ok=True)
            self._folder = Path(tempfile.mkdtemp(prefix=f"{cache.path.name}.partial-", dir=cache.path.parent))
        except OSError as error:
            raise DataSetError(
                f"decoded images cannot be stored in {cache.path.parent}: {error.strerror}; choose another --cache-dir"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def create(self, part: str, shape: tuple[int, ...], labels: npt.NDArray[np.int32]) -> npt.NDArray[np.uint8]:
        """Return the array to put a part's images into; it is a file, so it may be larger than the memory."""
        np.save(self._folder / f"y_{part}.npy", labels)
        return np.lib.format.open_memmap(self._folder / f"x_{part}.npy", mode="w+", dtype=np.uint8, shape=shape)

    def commit(self, facts: dict[str, Any]) -> None:
        """Make the cache visible, whole; if another process was faster, its equal cache stays."""
        (self._folder / _FACTS).write_text(json.dumps(facts))
        os.sync()
        with suppress(OSError):
            self._folder.rename(self._cache.path)


@dataclass(frozen=True)
class _Examples:
    """The encoded images of a part, with their labels."""

    encoded: list[Read]
    labels: list[int]


def load_files(path: Path, image_size: int | None, cache_folder: Path | None) -> DataSet:
    """Read images from a folder or a .zip with `train/CLASS/*.jpg` and `test/CLASS/*.jpg`, or from TFRecord files.

    With a cache images are decoded once: the pixels are kept there, and mapped into memory. Without one they are
    decoded whenever they are read.

    Args:
        image_size: Resize and crop every image to this height and width; None: all must have the same size.
        cache_folder: The folder of decoded images; None: without a cache.
    """
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    if cache_folder is None:
        return _open_encoded(path, _find(path, files), image_size)
    cache = ImageCache(cache_folder, cache_key(files, {"image_size": image_size}))
    if cache.exists():
        how = f"decoded before, from {cache.path}"
    else:
        began = time.perf_counter()
        _decode(path, files, image_size, cache)
        how = f"decoded in {time.perf_counter() - began:.1f} s, kept in {cache.path}"
    x_train, y_train = cache.read("train")
    x_test, y_test = cache.read("test")
    classes = cache.facts()["classes"]
    return DataSet(path.stem, f"{path}, {how}", x_train, y_train, x_test, y_test, classes, DEFAULT_EPOCHS)


def _decode(path: Path, files: list[Path], image_size: int | None, cache: ImageCache) -> None:
    parts = _find(path, files)
    with CacheWriter(cache) as writer, ThreadPoolExecutor() as pool:
        shape = _decode_one(parts["train"].encoded[0], image_size, None).shape
        for part, examples in parts.items():
            labels = np.array(examples.labels, np.int32)
            images = writer.create(part, (len(labels), *shape), labels)
            # In blocks, because a pool takes all of its work at once.
            for start in range(0, len(labels), _BLOCK):
                block = examples.encoded[start : start + _BLOCK]
                decoded = pool.map(lambda example: _decode_one(example, image_size, shape), block)
                for number, pixels in enumerate(decoded, start):
                    images[number] = pixels
        writer.commit({"classes": _count_classes(parts), "source": str(path)})


def _open_encoded(path: Path, parts: dict[str, _Examples], image_size: int | None) -> DataSet:
    sides = _decode_one(parts["train"].encoded[0], image_size, None).shape
    pool = ThreadPoolExecutor()

    def decode(encoded: list[Read], numbers: npt.NDArray[np.intp]) -> npt.NDArray[np.uint8]:
        return np.stack(list(pool.map(lambda number: _decode_one(encoded[number], image_size, sides), numbers)))

    images, labels = {}, {}
    for part, examples in parts.items():
        shape = (len(examples.labels), *sides)
        images[part] = EncodedImages(shape, functools.partial(decode, examples.encoded))
        labels[part] = np.array(examples.labels, np.int32)
    return DataSet(
        path.stem,
        f"{path}, decoded in every step",
        *(images["train"], labels["train"], images["test"], labels["test"]),
        _count_classes(parts),
        DEFAULT_EPOCHS,
    )


def _count_classes(parts: dict[str, _Examples]) -> int:
    return 1 + max(max(examples.labels) for examples in parts.values())


def _decode_one(read: Read, size: int | None, shape: tuple[int, ...] | None) -> npt.NDArray[np.uint8]:
    try:
        with Image.open(io.BytesIO(read())) as image:
            pixels = np.asarray(_resize(image.convert("RGB"), size))
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise DataSetError(f"{_name(read)} cannot be decoded as an image ({error}); remove or replace it") from error
    if shape is not None and pixels.shape != shape:
        raise DataSetError(
            f"{_name(read)} has {pixels.shape[1]}x{pixels.shape[0]} pixels and the first image "
            f"{shape[1]}x{shape[0]}; --image-size N makes all of them N x N"
        )
    return pixels


def _resize(image: Image.Image, size: int | None) -> Image.Image:
    """Make the shorter side `size` pixels long, and cut the middle out of the longer one."""
    if size is None:
        return image
    shorter = min(image.size)
    width, height = (max(size, round(side * size / shorter)) for side in image.size)
    left, top = (width - size) // 2, (height - size) // 2
    return image.resize((width, height), Image.Resampling.BILINEAR).crop((left, top, left + size, top + size))


def _name(read: Read) -> str:
    return str(getattr(read, "name", "an image"))


@dataclass(frozen=True)
class _File:
    """An image in a folder, or in a .zip."""

    root: Path
    name: str
    archive: zipfile.ZipFile | None

    def __call__(self) -> bytes:
        return self.archive.read(self.name) if self.archive else (self.root / self.name).read_bytes()


@dataclass(frozen=True)
class _Record:
    content: bytes
    name: str

    def __call__(self) -> bytes:
        return self.content


def _find(path: Path, files: list[Path]) -> dict[str, _Examples]:
    records = [file for file in files if ".tfrecord" in file.name]
    examples = _find_records(records) if records else _find_images(path, files)
    for part, names in PARTS.items():
        if not examples[part].labels:
            raise DataSetError(
                f"{path} has no {part} examples: expected {names[0]}/CLASS/*.jpg (or png, bmp, webp), "
                f"or {names[0]}*.tfrecord*"
            )
    return examples


def _find_records(files: list[Path]) -> dict[str, _Examples]:
    examples = {part: _Examples([], []) for part in PARTS}
    for file in sorted(files):
        part = next((part for part, names in PARTS.items() if file.name.startswith(names)), None)
        if part is not None:
            for number, (content, label) in enumerate(read_records(file)):
                examples[part].encoded.append(_Record(content, f"record {number} of {file}"))
                examples[part].labels.append(label)
    return examples


def _find_images(path: Path, files: list[Path]) -> dict[str, _Examples]:
    archive = _open_zip(path) if path.is_file() else None
    names = archive.namelist() if archive else [str(file.relative_to(path)) for file in files]
    by_class = sorted(_image_names(names))
    classes = sorted({label for _, label, _ in by_class})
    examples = {part: _Examples([], []) for part in PARTS}
    for part, label, name in by_class:
        examples[part].encoded.append(_File(path, name, archive))
        examples[part].labels.append(classes.index(label))
    return examples


def _open_zip(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile) as error:
        raise DataSetError(f"{path} cannot be read as a .zip ({error})") from error


def _image_names(names: list[str]) -> Iterator[tuple[str, str, str]]:
    """Yield part, class and name of each `…/PART/CLASS/IMAGE`."""
    for name in names:
        folders = Path(name).parts[:-1]
        if Path(name).suffix.lower() in SUFFIXES:
            for part, folder in itertools.pairwise(folders):
                part_key = next((key for key, names_of in PARTS.items() if part in names_of), None)
                if part_key is not None:
                    yield part_key, folder, name
                    break


def read_records(path: Path) -> Iterator[tuple[bytes, int]]:
    """Yield the encoded image and the label of each record."""
    tf = import_tensorflow()
    compression = "GZIP" if path.suffix == ".gz" else ""
    try:
        for record in tf.data.TFRecordDataset(str(path), compression_type=compression).as_numpy_iterator():
            features = tf.train.Example.FromString(record).features.feature
            yield (
                _value(features, IMAGE_KEYS, path).bytes_list.value[0],
                int(_value(features, LABEL_KEYS, path).int64_list.value[0]),
            )
    except (tf.errors.OpError, IndexError) as error:
        raise DataSetError(f"{path} cannot be read as TFRecord ({str(error)[:200]}); fetch it again") from error


def _value(features: Any, keys: tuple[str, ...], path: Path) -> Any:  # noqa: ANN401 - generated messages have no types
    feature = next((features[key] for key in keys if key in features), None)
    if feature is None:
        raise DataSetError(f"a record of {path} has none of the keys {', '.join(keys)}, but {', '.join(features)}")
    return feature
