"""Copies of outputs in Cloud Storage; a folder stands for the bucket, which TensorFlow writes to in the same way."""

import pytest
from support.keras_process_functions import upload_with_outage
from support.trainer_process import call_with_keras

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def folders(tmp_path):
    output = tmp_path / "output"
    output.mkdir()
    return output, tmp_path / "bucket"


@pytest.mark.parametrize("upload", ["checkpoint", "last"])
def test_an_upload_that_failed_is_repeated(upload, folders):
    output, bucket = folders
    assert call_with_keras(upload_with_outage, output, bucket, upload, 60.0) == ""
    assert {path.name: path.read_bytes() for path in bucket.iterdir()} == {"first": b"1", "second": b"2"}


def test_a_last_upload_that_never_succeeds_is_an_error(folders):
    output, bucket = folders
    assert str(bucket) in call_with_keras(upload_with_outage, output, bucket, "last", 0.0)
