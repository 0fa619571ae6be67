"""TFRecord files of labelled, encoded images: the keys of TensorFlow's ImageNet scripts, and of TensorFlow Datasets."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gradient_trainer.errors import DataSetError
from gradient_trainer.training.framework_import import import_tensorflow

IMAGE_KEYS = ("image/encoded", "image")
LABEL_KEYS = ("image/class/label", "label")


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
    found = next((features[key] for key in keys if key in features), None)
    if found is None:
        raise DataSetError(f"a record of {path} has none of the keys {', '.join(keys)}, but {', '.join(features)}")
    return found
