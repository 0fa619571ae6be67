import numpy as np
import pytest

from gradient_trainer.outputs.checkpoints import Checkpoint, CheckpointFolder


def at(step):
    weights = np.random.default_rng(step).normal(size=(50, 40)).astype(np.float32)
    return Checkpoint(step, {"0000/dense/kernel": weights, "0001/iterations": np.array(step)}, {"seed": 1})


@pytest.fixture
def folder(tmp_path):
    return CheckpointFolder(tmp_path / "checkpoints")


def flip_a_byte_in_the_middle(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path):
    path.write_bytes(path.read_bytes()[:100])


def empty(path):
    path.write_bytes(b"")


def test_what_was_saved_comes_back(folder):
    assert folder.newest() is None
    folder.save(at(10))
    found = folder.newest()
    assert (found.step, found.training) == (10, {"seed": 1})
    assert found.arrays.keys() == at(10).arrays.keys()
    assert all((found.arrays[name] == array).all() for name, array in at(10).arrays.items())


def test_the_newest_two_are_kept(folder):
    for step in (1, 20, 300):
        folder.save(at(step))
    assert sorted(path.name for path in folder.folder.iterdir()) == ["step-00000020.npz", "step-00000300.npz"]
    assert folder.newest().step == 300


@pytest.mark.parametrize("damage", [flip_a_byte_in_the_middle, cut, empty])
def test_damage_falls_back_to_the_one_before(folder, damage):
    folder.save(at(10))
    newest = folder.save(at(20))
    damage(newest)
    assert folder.newest().step == 10
    assert folder.set_aside == [newest.with_suffix(".damaged")]
    folder.save(at(11))
    assert folder.newest().step == 11


def test_a_write_that_fails_leaves_the_old_one(folder):
    folder.save(at(10))
    with pytest.raises(TypeError):
        folder.save(Checkpoint(20, at(20).arrays, {"seed": object()}))
    assert folder.newest().step == 10


def test_a_write_that_was_killed_leaves_nothing_behind(folder):
    folder.save(at(10))
    (folder.folder / "step-00000020.partial").write_bytes(b"half")
    again = CheckpointFolder(folder.folder)
    assert again.newest().step == 10
    assert [path.name for path in folder.folder.iterdir()] == ["step-00000010.npz"]


def test_clear_forgets_all(folder):
    folder.save(at(10))
    folder.clear()
    assert folder.newest() is None
