import json
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class TrainResult:
    """What came out of a training.

    Attributes:
        model: The model's name.
        data: The data set's name, also where `auto` chose it.
        epochs: Passes over the training examples.
        steps: Training steps in all, those before a resumption included.
        resumed_from_step: The step at which this process took over, or 0.
        test_loss: Mean cross-entropy on the test examples; None where they are still to be tested.
        test_accuracy: Share of the test examples that were recognized, 0..1.
        test_examples: How many test examples there were.
        val_loss: Mean cross-entropy on the examples kept aside, after the last step.
        val_accuracy: Share of those that were recognized, 0..1.
        steps_per_second: Pace of this process without its first steps, checkpoints and evaluation;
            None if it did too few steps to tell.
        examples_per_second: The same in examples.
        seconds: From the call to the result, everything included.
        device: What it was computed on.
        replicas: Into how many parts each batch was divided.
        batch_size: Examples in a step, all parts together.
        learning_rate: The peak.
        output: The folder of all outputs.
        options: The options as given.
    """

    model: str
    data: str
    epochs: int
    steps: int
    resumed_from_step: int
    test_loss: float | None
    test_accuracy: float | None
    test_examples: int
    val_loss: float
    val_accuracy: float
    steps_per_second: float | None
    examples_per_second: float | None
    seconds: float
    device: str
    replicas: int
    batch_size: int
    learning_rate: float
    output: str
    options: dict[str, Any]

    def as_json(self) -> str:
        """One line of JSON with every attribute."""
        return json.dumps(asdict(self))
