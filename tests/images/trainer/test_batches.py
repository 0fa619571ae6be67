import numpy as np
import pytest

from gradient_trainer.errors import OptionsError
from gradient_trainer.training.batches import Batches, padded, split_validation


def test_an_epoch_uses_each_example_at_most_once_and_epochs_differ():
    batches = Batches(np.arange(103), batch_size=10, seed=1)
    epochs = [np.concatenate([batches.at(10 * epoch + step) for step in range(10)]) for epoch in range(2)]
    assert batches.per_epoch == 10
    assert [len(set(epoch.tolist())) for epoch in epochs] == [100, 100]
    assert epochs[0].tolist() != epochs[1].tolist()


def test_the_order_depends_only_on_seed_and_step():
    examples = np.arange(50)
    straight = Batches(examples, batch_size=8, seed=3)
    expected = [straight.at(step).tolist() for step in range(15)]
    resumed = Batches(examples, batch_size=8, seed=3)
    assert [resumed.at(step).tolist() for step in range(9, 15)] == expected[9:]
    assert Batches(examples, batch_size=8, seed=4).at(0).tolist() != expected[0]


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(OptionsError, match="--batch-size 11 is more than the 10 training examples"):
        Batches(np.arange(10), batch_size=11, seed=1)


def test_validation_examples_are_not_trained_on():
    training, validation = split_validation(200, 0.05)
    assert len(validation) == 10
    assert sorted([*training, *validation]) == list(range(200))


def test_padding_keeps_the_batch_size_and_weighs_nothing():
    pairs = list(padded(np.arange(7), 3))
    assert [len(batch) for batch, _ in pairs] == [3, 3, 3]
    counted = [int(number) for batch, weights in pairs for number in batch[weights > 0]]
    assert counted == list(range(7))
