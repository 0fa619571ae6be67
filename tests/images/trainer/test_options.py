import json
from pathlib import Path

import pytest

from gradient_trainer import TrainOptions
from gradient_trainer.errors import OptionsError


def test_output_is_the_flag_then_the_environment_then_artifacts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    environ = {"GRADIENT_ARTIFACTS_DIR": str(tmp_path / "kept")}
    (tmp_path / "mounted").mkdir()

    assert TrainOptions(output="mine").output_folder(environ) == tmp_path / "mine"
    assert TrainOptions().output_folder(environ) == tmp_path / "kept"
    assert TrainOptions().output_folder({}, default=tmp_path / "mounted") == tmp_path / "mounted"
    assert TrainOptions().output_folder({}, default=tmp_path / "absent") == tmp_path / "artifacts"
    assert (tmp_path / "artifacts").is_dir()


def test_data_is_looked_for_in_the_flag_the_storage_and_keras_cache(monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    options = TrainOptions(data_dir="/mine")
    assert options.data_folders({"GRADIENT_STORAGE_DIR": "/team"}) == [
        Path("/mine"),
        Path("/team/datasets"),
        Path("/storage/datasets"),
        Path("/home/somebody/.keras/datasets"),
    ]
    assert TrainOptions().data_folders({"GRADIENT_STORAGE_DIR": "/storage"})[0] == Path("/storage/datasets")
    assert len(TrainOptions().data_folders({"GRADIENT_STORAGE_DIR": "/storage"})) == 2


def test_options_are_plain_json():
    assert TrainOptions(output=Path("/out"), seed=3).as_json() | {"output": "/out", "seed": 3} == (
        TrainOptions(output="/out", seed=3).as_json()
    )


def test_batch_and_rate_are_scaled_when_asked():
    assert TrainOptions(batch_size=64, learning_rate=0.001).scaled(8) == (64, 0.001)
    assert TrainOptions(batch_size=64, learning_rate=0.001, scale_by_replicas=True).scaled(8) == (512, 0.008)
    assert TrainOptions(batch_size=30).scaled(1) == (30, 0.001)
    with pytest.raises(OptionsError, match="choose a multiple of 8"):
        TrainOptions(batch_size=30).scaled(8)


def test_outputs_go_to_the_bucket_that_the_job_was_given():
    assert TrainOptions().output_url({}) is None
    assert TrainOptions().output_url({"TPU_MODEL_DIR": "gs://b/model"}) == "gs://b/model"
    assert TrainOptions(output="out").output_url({"TPU_MODEL_DIR": "gs://b/model"}) is None
    assert TrainOptions(output="gs://c/d").output_url({}) == "gs://c/d"
    assert json.loads(json.dumps(TrainOptions().as_json()))["scale_by_replicas"] is False
