import numpy as np
import pytest

from gradient_trainer.errors import DataSetError
from gradient_trainer.registry import DATASETS


def write_mnist(path, **changes):
    images = np.arange(4 * 28 * 28, dtype=np.uint8).reshape(4, 28, 28)
    labels = np.array([0, 9, 3, 4], np.uint8)
    arrays = {"x_train": images, "y_train": labels, "x_test": images[:2], "y_test": labels[:2]} | changes
    path.mkdir(parents=True, exist_ok=True)
    np.savez(path / "mnist.npz", **arrays)


@pytest.fixture
def places(tmp_path):
    return [tmp_path / "first", tmp_path / "second"]


def test_mnist_is_read_from_the_first_place_that_has_it(places):
    write_mnist(places[1])
    data = DATASETS.get("mnist")(places)
    assert data.origin == str(places[1] / "mnist.npz")
    assert data.x_train.shape == (4, 28, 28, 1)
    assert data.image_shape == (28, 28, 1)
    assert data.y_train.tolist() == [0, 9, 3, 4]
    assert data.x_train.dtype == np.uint8


@pytest.mark.parametrize(
    "changes",
    [
        {"x_train": np.zeros((4, 784), np.uint8)},
        {"y_test": np.zeros(3, np.uint8)},
        {"y_train": np.array([0, 1, 2, 10])},
        {"y_train": np.array([{}, 1, 2, 3], object)},
    ],
)
def test_a_wrong_mnist_file_is_refused(places, changes):
    write_mnist(places[0], **changes)
    with pytest.raises(DataSetError, match="fetch it again"):
        DATASETS.get("mnist")(places)


def test_a_truncated_mnist_file_is_refused(places):
    write_mnist(places[0])
    file = places[0] / "mnist.npz"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(DataSetError, match=r"cannot be read as Keras' mnist\.npz"):
        DATASETS.get("mnist")(places)


def test_auto_takes_mnist_where_found_and_says_why_not(places):
    missing = DATASETS.get("auto")(places)
    assert missing.name == "digits"
    assert f"no mnist.npz in {places[0]}, {places[1]}" in missing.origin
    write_mnist(places[0])
    assert DATASETS.get("auto")(places).name == "mnist"
