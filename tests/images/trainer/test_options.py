import json
from pathlib import Path

import pytest

from gradient_trainer import TrainOptions
from gradient_trainer.errors import OptionsError
from gradient_trainer.recipes import Recipe, check_span, span_steps


def test_data_is_looked_for_in_the_flag_the_storage_and_keras_cache(monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    options = TrainOptions(data_dir="/mine")
    assert options.data_folders({"GRADIENT_STORAGE_DIR": "/team"}) == [
        Path("/mine"),
        Path("/team/datasets"),
        Path("/team"),
        Path("/storage/datasets"),
        Path("/home/somebody/.keras/datasets"),
    ]
    assert TrainOptions().data_folders({"GRADIENT_STORAGE_DIR": "/storage"})[0] == Path("/storage/datasets")
    assert len(TrainOptions().data_folders({"GRADIENT_STORAGE_DIR": "/storage"})) == 3


def scaled(options, replicas):
    recipe = options.scaled_recipe(replicas)
    return recipe.batch_size, recipe.learning_rate


def test_batch_and_rate_are_scaled_when_asked():
    assert scaled(TrainOptions(batch_size=64, learning_rate=0.001), 8) == (64, 0.001)
    assert scaled(TrainOptions(batch_size=64, learning_rate=0.001, scale_by_replicas=True), 8) == (512, 0.008)
    assert scaled(TrainOptions(batch_size=30), 1) == (30, 0.001)
    with pytest.raises(OptionsError, match="choose a multiple of 8"):
        scaled(TrainOptions(batch_size=30), 8)
    with pytest.raises(OptionsError, match="--validation-batch-size 100 cannot be divided over 8 devices"):
        scaled(TrainOptions(batch_size=64, validation_batch_size=100), 8)


def test_a_models_recipe_is_the_default_of_the_flags():
    recipe = TrainOptions(model="davidnet-cifar10", weight_decay=0.000125).recipe()
    assert (recipe.batch_size, recipe.learning_rate, recipe.weight_decay) == (512, 0.4, 0.000125)
    assert TrainOptions(model="mine.py").recipe() == Recipe()
    assert TrainOptions(model="davidnet-cifar10", augment="cutout,crop").recipe().augmentations == ("crop", "cutout")


@pytest.mark.parametrize(
    ("options", "environ", "complaint"),
    [
        ({"epochs": 1, "steps": 5}, {}, "--epochs and --steps"),
        ({"precision": "mixed_float16"}, {"TPU_NAME": "local"}, "impossible on a TPU, which has no float16"),
        ({"precision": "float16"}, {"TPU_GRPC_URL": "grpc://10.0.0.2"}, "choose mixed_bfloat16"),
        ({"backend": "torch"}, {"TPU_GRPC_URL": "grpc://10.0.0.2"}, "only TensorFlow speaks to"),
        ({"decode": "always"}, {"TPU_GRPC_URL": "grpc://10.0.0.2"}, "whose host prepares the input"),
        ({"milestones": "10,20"}, {}, "--milestones belongs to --schedule piecewise"),
        ({"schedule": "piecewise"}, {}, "--schedule piecewise needs --milestones"),
        ({"xla": "on"}, {}, "add --no-deterministic"),
        ({"backend": "torch"}, {}, "--backend torch is not installed; pip install torch"),
    ],
)
def test_options_that_exclude_each_other_are_refused(options, environ, complaint, monkeypatch):
    monkeypatch.setattr("gradient_trainer.options.BACKENDS", {"tensorflow": "json", "torch": "no_such_package"})
    if "pip install" in complaint:
        monkeypatch.setattr("gradient_trainer.options.BACKENDS", {"tensorflow": "json", "torch": "torch"})
        monkeypatch.setattr("gradient_trainer.options.find_spec", lambda name: None if name == "torch" else name)
    with pytest.raises(OptionsError, match=complaint):
        TrainOptions(**options).check_combinations(environ)


@pytest.mark.parametrize(("span", "steps"), [("500", 500), ("5e", 200), ("10%", 100), ("2.5e", 100), ("0", 0)])
def test_spans_are_steps_epochs_or_a_share(span, steps):
    check_span("--warm-up", span)
    assert span_steps(span, per_epoch=40, total=1000) == steps


def test_decoded_images_are_kept_in_the_storage_that_jobs_share(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    assert TrainOptions().cache_folder({}) == Path("/home/somebody/.cache/gradient_trainer")
    environ = {"GRADIENT_STORAGE_DIR": str(tmp_path)}
    assert TrainOptions().cache_folder(environ) == tmp_path / "cache" / "gradient_trainer"
    assert TrainOptions(cache_dir="/mine").cache_folder(environ) == Path("/mine")


def test_outputs_go_to_the_bucket_that_the_job_was_given():
    assert TrainOptions().output_url({}) is None
    assert TrainOptions().output_url({"TPU_MODEL_DIR": "gs://b/model"}) == "gs://b/model"
    assert TrainOptions(output="out").output_url({"TPU_MODEL_DIR": "gs://b/model"}) is None
    assert TrainOptions(output="gs://c/d").output_url({}) == "gs://c/d"
    assert json.loads(json.dumps(TrainOptions().as_json()))["scale_by_replicas"] is False
