from pathlib import Path

from gradient_trainer import TrainOptions


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
    assert options.data_places({"GRADIENT_STORAGE_DIR": "/team"}) == [
        Path("/mine"),
        Path("/team/datasets"),
        Path("/storage/datasets"),
        Path("/home/somebody/.keras/datasets"),
    ]
    assert TrainOptions().data_places({"GRADIENT_STORAGE_DIR": "/storage"})[0] == Path("/storage/datasets")
    assert len(TrainOptions().data_places({"GRADIENT_STORAGE_DIR": "/storage"})) == 2


def test_options_are_plain_json():
    assert TrainOptions(output=Path("/out"), seed=3).as_json() | {"output": "/out", "seed": 3} == (
        TrainOptions(output="/out", seed=3).as_json()
    )
