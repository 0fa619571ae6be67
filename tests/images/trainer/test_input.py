"""Images in files, their cache, and their augmentation."""

import io
import json
import os
import pickle
import zipfile

import numpy as np
import pytest
from PIL import Image
from support.keras_process_functions import augmented, read_folder, write_tfrecord
from support.trainer_process import SMALL_MODEL, call_with_keras, fork_trainer

from gradient_trainer.datasets import _files
from gradient_trainer.datasets._files import load_files
from gradient_trainer.errors import DataSetError
from gradient_trainer.registry import DATASETS

CLASSES = ("cat", "dog")


def png(brightness, size=(8, 8)):
    content = io.BytesIO()
    Image.new("RGB", size, (brightness, 0, 255 - brightness)).save(content, "png")
    return content.getvalue()


def images_by_name():
    return {
        f"{part}/{label}/{number}.png": png(100 * place + number)
        for part, count in (("train", 3), ("test", 2))
        for place, label in enumerate(CLASSES)
        for number in range(count)
    }


@pytest.fixture
def folder(tmp_path):
    for name, content in images_by_name().items():
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "photos" / name).write_bytes(content)
    return tmp_path / "photos"


def check(data):
    assert data.image_shape == (8, 8, 3)
    assert data.classes == 2
    assert data.x_train[:, 0, 0, 0].tolist() == [0, 1, 2, 100, 101, 102]
    assert data.y_train.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.y_test.tolist() == [0, 0, 1, 1]
    assert data.x_train.dtype == np.uint8


def test_a_folder_is_decoded_once_and_again_when_it_changes(folder, tmp_path, monkeypatch):
    first = load_files(folder, None, tmp_path / "cache")
    check(first)
    assert "decoded in" in first.origin
    with monkeypatch.context() as without_decoder:
        without_decoder.setattr(_files, "_decode", None)
        again = load_files(folder, None, tmp_path / "cache")
    check(again)
    assert "decoded before" in again.origin
    assert isinstance(again.x_train, np.memmap)
    (folder / "train" / "cat" / "3.png").write_bytes(png(3))
    assert len(load_files(folder, None, tmp_path / "cache").x_train) == 7
    assert load_files(folder, 4, tmp_path / "cache").image_shape == (4, 4, 3)
    assert len(list((tmp_path / "cache").iterdir())) == 3, "and nothing partial"


def test_a_zip_of_the_same_is_read(tmp_path):
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        for name, content in images_by_name().items():
            archive.writestr(f"photos/{name}", content)
    check(load_files(tmp_path / "photos.zip", None, tmp_path / "cache"))


@pytest.mark.tensorflow
@pytest.mark.parametrize("keys", [("image/encoded", "image/class/label"), ("image", "label")])
def test_tfrecord_files_are_read(tmp_path, keys):
    records = tmp_path / "records"
    records.mkdir()
    for name, labels in (("train-00000-of-00001.tfrecord", [1, 0, 2]), ("validation.tfrecord", [1])):
        call_with_keras(write_tfrecord, str(records / name), [png(label) for label in labels], labels, keys)
    images, labels, classes = call_with_keras(read_folder, str(records), str(tmp_path / "cache"))
    assert images[:, 0, 0, 0].tolist() == labels == [1, 0, 2]
    assert classes == 3


def test_what_cannot_be_decoded_is_named_and_leaves_no_cache(folder, tmp_path):
    (folder / "train" / "dog" / "9.png").write_bytes(b"no image")
    with pytest.raises(DataSetError, match=r"train/dog/9\.png.* cannot be decoded as an image"):
        load_files(folder, None, tmp_path / "cache")
    (folder / "train" / "dog" / "9.png").write_bytes(png(1, (8, 9)))
    with pytest.raises(DataSetError, match=r"9\.png.* has 8x9 pixels and the first image 8x8; --image-size N"):
        load_files(folder, None, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.tensorflow
def test_images_decoded_in_every_step_train_the_same_and_leave_no_cache(folder, tmp_path):
    (tmp_path / "small.py").write_text(SMALL_MODEL)
    flags = ["--model", "small.py", "--data", str(folder), "--batch-size", "2", "--epochs", "2", "--restart"]

    def train(decode):
        output = tmp_path / decode
        every = [*flags, "--decode", decode, "--output", str(output), "--cache-dir", str(output / "cache")]
        return fork_trainer(every, tmp_path, {}), output

    (once, kept), (always, nothing) = train("once"), train("always")
    assert "decoded in every step" in always.stdout
    results = [json.loads((output / "result.json").read_text()) for output in (kept, nothing)]
    assert results[0]["test_loss"] == results[1]["test_loss"], once.stdout + always.stdout
    assert (kept / "cache").exists()
    assert not (nothing / "cache").exists()
    (folder / "train" / "dog" / "1.png").write_bytes(b"no image")
    damaged, _ = train("always")
    assert damaged.returncode == 2
    assert "1.png cannot be decoded as an image" in damaged.stdout
    assert "Traceback" not in damaged.stdout


def test_a_folder_without_a_part_is_refused(folder, tmp_path):
    (folder / "test").rename(folder / "other")
    with pytest.raises(DataSetError, match="has no test examples: expected test/CLASS"):
        load_files(folder, None, tmp_path / "cache")
    (tmp_path / "broken.zip").write_bytes(b"PK")
    with pytest.raises(DataSetError, match=r"broken\.zip cannot be read as a \.zip"):
        load_files(tmp_path / "broken.zip", None, tmp_path / "cache")


def test_a_cache_folder_that_cannot_be_made_is_refused(folder, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataSetError, match="choose another --cache-dir"):
        load_files(folder, None, tmp_path / "file" / "cache")


@pytest.fixture
def keras_cache(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for number, name in enumerate(["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5"]):
        write_batch(folder / name, number)
    write_batch(folder / "test_batch", 9)
    return folder


def write_batch(path, label):
    pixels = np.zeros((2, 3 * 32 * 32), np.uint8)
    pixels[:, 1024:2048] = label
    path.write_bytes(pickle.dumps({b"data": pixels, b"labels": [label, label]}, protocol=2))


def test_cifar10_is_read_as_keras_keeps_it(keras_cache):
    data = DATASETS.get("cifar10")([keras_cache.parent])
    assert data.x_train.shape == (10, 32, 32, 3)
    assert data.x_train[8, 31, 31].tolist() == [0, 4, 0], "channels come last"
    assert data.y_train.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert data.y_test.tolist() == [9, 9]


def test_a_cifar10_file_that_would_run_code_is_refused(keras_cache, tmp_path):
    class Attack:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "attacked"),)

    (keras_cache / "test_batch").write_bytes(pickle.dumps(Attack()))
    with pytest.raises(DataSetError, match="cannot be read as a batch of CIFAR-10"):
        DATASETS.get("cifar10")([keras_cache.parent])
    assert not (tmp_path / "attacked").exists()
    with pytest.raises(DataSetError, match="data set 'cifar10' was not found"):
        DATASETS.get("cifar10")([tmp_path / "elsewhere"])


@pytest.mark.tensorflow
def test_augmentations_change_images_by_seed_and_step_alone():
    images = np.random.default_rng(1).integers(1, 255, (6, 32, 32, 3), np.uint8)
    [same, other] = [call_with_keras(augmented, ["crop", "flip", "cutout"], images, 1, step) for step in (5, 6)]
    assert same.shape == images.shape
    assert same.dtype == np.uint8
    assert (same == call_with_keras(augmented, ["crop", "flip", "cutout"], images, 1, 5)).all()
    assert (same != other).any()
    cut = call_with_keras(augmented, ["cutout"], images, 1, 5)
    mean = np.round(images.mean(axis=(0, 1, 2))).astype(np.uint8)
    assert [int((image == mean).all(axis=-1).sum()) for image in cut] == [64] * 6, "8 x 8 pixels are the mean"
    padded = call_with_keras(augmented, ["crop-zeros"], images, 1, 5)
    assert (padded == mean).all(axis=-1).any()
    assert (padded == 0).sum() == 0
    assert all((image != mean).any(axis=-1).sum() >= 28 * 28 - 8 for image in padded), "4 pixels on two sides at most"
    flipped = call_with_keras(augmented, ["flip"], images, 1, 5)
    kinds = {"same" if (new == old).all() else "flipped" for new, old in zip(flipped, images, strict=True)}
    assert kinds == {"same", "flipped"}
    assert all((new == old).all() or (new == old[:, ::-1]).all() for new, old in zip(flipped, images, strict=True))
