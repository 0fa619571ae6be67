import errno

import numpy as np
import pytest

from gradient_trainer.errors import DamagedCheckpointsError
from gradient_trainer.outputs.checkpoints import Checkpoint, CheckpointFolder


def at(step):
    weights = np.random.default_rng(step).normal(size=(50, 40)).astype(np.float32)
    return Checkpoint(step, {"0000/dense/kernel": weights, "0001/iterations": np.array(step)}, {"seed": 1})


@pytest.fixture
def folder(tmp_path):
    return CheckpointFolder(tmp_path / "checkpoints")


def flip(offset, bits=1, after=b""):
    """Damage a checkpoint: flip bits of the byte at this offset from the first place of some bytes."""

    def damage(path):
        content = bytearray(path.read_bytes())
        content[content.index(after) + offset] ^= bits
        path.write_bytes(content)

    return damage


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


def test_validation_and_target_come_back(folder):
    target = {"accuracy": 0.9, "step": 5, "seconds": None}
    folder.save(Checkpoint(10, at(10).arrays, {}, validated_step=5, target=target))
    found = folder.newest()
    assert (found.validated_step, found.target) == (5, target)


def test_the_newest_two_are_kept(folder):
    for step in (1, 20, 300):
        folder.save(at(step))
    assert sorted(path.name for path in folder.folder.iterdir()) == ["step-00000020.npz", "step-00000300.npz"]
    assert folder.newest().step == 300


ENTRY = b"PK\x01\x02"
"""Starts a file's entry in the directory at a zip's end."""
DAMAGE = {
    "cut": cut,
    "empty": empty,
    "zip signature": flip(0),
    "array": flip(4000),
    "array header": flip(0, after=b"NUMPY"),
    "zip version": flip(6, 64, after=ENTRY),
    "encryption": flip(8, after=ENTRY),
    "name": flip(50, after=ENTRY),
    "place of the directory": flip(-6),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damage_falls_back_to_the_one_before(folder, damage):
    folder.save(at(10))
    newest = folder.save(at(20))
    damage(newest)
    assert folder.newest().step == 10
    assert folder.set_aside == [newest.with_suffix(".damaged")]
    folder.save(at(11))
    assert folder.newest().step == 11


def test_a_read_error_is_not_damage(folder):
    folder.save(at(10))
    newest = folder.save(at(20))
    intact = newest.rename(newest.with_suffix(".intact"))
    newest.symlink_to("/proc/self/mem")  # address 0 cannot be read
    with pytest.raises(OSError, match="Input/output") as failed:
        folder.newest()
    assert failed.value.errno == errno.EIO
    intact.replace(newest)
    assert folder.newest().step == 20
    assert folder.set_aside == []


def test_damage_of_every_checkpoint_is_refused_until_a_restart(folder):
    paths = [folder.save(at(step)) for step in (10, 20)]
    for path in paths:
        cut(path)
    for _ in range(2):
        with pytest.raises(DamagedCheckpointsError, match=r"step-00000020\.npz, step-00000010\.npz\).*--restart"):
            CheckpointFolder(folder.folder).newest()
    folder.clear()
    assert folder.newest() is None


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
