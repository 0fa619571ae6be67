import subprocess
import sys

import pytest

from gradient_trainer.cli import build_parser, main
from gradient_trainer.datasets import mnist
from gradient_trainer.options import TrainOptions


def test_help_imports_nothing_heavy():
    command = [sys.executable, "-X", "importtime", "-m", "gradient_trainer", "--help"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)

    assert "--learning-rate RATE" in ended.stdout
    assert "mnist-cnn" in ended.stdout
    imported = {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines()}
    assert "gradient_trainer.cli" in imported
    assert imported.isdisjoint({"tensorflow", "keras", "sklearn", "numpy"})


def test_flags_become_options():
    flags = "--epochs 3 --batch-size 64 --learning-rate 0.01 --seed 7 --no-deterministic --restart --output out"
    parsed = vars(build_parser().parse_args(flags.split()))
    del parsed["list"], parsed["find_learning_rate"]
    assert TrainOptions(**parsed) == TrainOptions(
        epochs=3, batch_size=64, learning_rate=0.01, seed=7, deterministic=False, restart=True, output="out"
    )


def test_a_missing_data_set_names_every_place_looked(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(mnist, "FILE_NAME", "absent.npz")
    monkeypatch.setenv("GRADIENT_STORAGE_DIR", str(tmp_path / "storage"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    output = tmp_path / "outputs"

    code = main(["--data", "mnist", "--data-dir", str(tmp_path / "mine"), "--output", str(output)])

    assert code == 2
    complaint = capsys.readouterr().err
    for place in ("mine", "storage/datasets", "home/.keras/datasets"):
        assert f"  {tmp_path}/{place}/absent.npz\n" in complaint
    assert "  /storage/datasets/absent.npz\n" in complaint
    assert "--data digits" in complaint
    assert not output.exists()


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--model", "mnist-cn"], "unknown model 'mnist-cn'; did you mean 'mnist-cnn'?"),
        (["--model", "absent.py"], "model 'absent.py': there is no such file"),
        (["--data", "cifar"], "unknown data set 'cifar'"),
        (["--epochs", "0"], "--epochs must be 1 or more; it is 0"),
        (["--batch-size", "-1"], "--batch-size must be 1 or more; it is -1"),
        (["--learning-rate", "nan"], "--learning-rate must be above 0"),
        (["--validation-split", "1"], "--validation-split must lie between 0 and 1"),
        (["--seed", "-1"], "--seed must lie between 0 and"),
        (["--weight-decay", "-1"], "--weight-decay must be 0 or more"),
        (
            ["--warm-up", "soon"],
            "--warm-up must be steps (500), epochs (5e) or a share of the training (10%); it is 'soon'",
        ),
        (["--schedule", "piecewise", "--milestones", "1,x"], "--milestones must be steps"),
        (["--augment", "crop,blur"], "--augment must be none, or any of crop,crop-zeros,flip,cutout; it is crop,blur"),
        (["--precision", "half"], "--precision must be one of float32, mixed_float16,"),
        (["--epochs", "1", "--steps", "1"], "choose one"),
        (["--decode", "always", "--data", "digits"], "--decode always needs image files as --data; digits has none"),
        (["--data", "absent.zip"], "unknown data set 'absent.zip'"),
    ],
)
def test_bad_options_are_refused(flags, complaint, capsys, tmp_path):
    assert main([*flags, "--output", str(tmp_path / "outputs")]) == 2
    assert complaint in capsys.readouterr().err


def test_an_output_folder_that_cannot_be_made_is_refused(capsys, tmp_path):
    (tmp_path / "file").touch()
    assert main(["--data", "digits", "--output", str(tmp_path / "file" / "outputs")]) == 2
    assert "cannot be made" in capsys.readouterr().err
