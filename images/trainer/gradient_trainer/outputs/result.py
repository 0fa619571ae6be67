import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gradient_trainer.measurement.pace import WARM_UP_STEPS, format_pace


@dataclass(frozen=True)
class TrainResult:
    model: str
    data: str  # the data set's name, also where `auto` chose it
    epochs: int
    steps: int  # training steps in total, including those before a resumption
    resumed_from_step: int  # the step that this process resumed from, or 0
    test_loss: float | None  # mean cross-entropy on the test examples; None if they are still to be tested
    test_accuracy: float | None  # share of the test examples that were recognized, 0..1
    test_examples: int
    val_loss: float  # mean cross-entropy on the validation examples, after the last step
    val_accuracy: float  # share of those that were recognized, 0..1
    # throughput of this process without its first steps, checkpoints and evaluation; None if it did too few steps to
    # measure
    steps_per_second: float | None
    examples_per_second: float | None
    seconds: float
    device: str
    replicas: int
    batch_size: int
    learning_rate: float
    precision: str  # the precision in use, also where `auto` chose it
    output: str
    options: dict[str, Any]
    summary: dict[str, Any] = field(repr=False)  # the blocks of `summary.json`, which `result.json` does not repeat

    def as_json(self) -> str:
        """Return one line of JSON with every attribute but the summary."""
        values = asdict(self)
        del values["summary"]
        return json.dumps(values)

    def write(self, folder: Path) -> None:
        partial = folder / "result.json.partial"
        partial.write_text(self.as_json() + "\n", encoding="utf-8")
        partial.replace(folder / "result.json")

    def print(self) -> None:
        """Print a summary, the last line as JSON."""
        if self.steps_per_second is None:
            pace = f"not measured: no step after the first {WARM_UP_STEPS} of this run"
        else:
            pace = format_pace(self.steps_per_second, self.examples_per_second)
            pace += f", without the first {WARM_UP_STEPS} steps, checkpoints and evaluation"
        print(
            f"\ntest accuracy  {self.test_accuracy:.2%} of {self.test_examples:,} images\n"
            f"test loss      {self.test_loss:.4f}\n"
            f"pace           {pace}\n"
            f"time           {self.seconds:.1f} s\n"
            f"outputs        {self.output}: model.keras, result.json, summary.json, checkpoints/, tensorboard/\n"
            f"RESULT {self.as_json()}",
            flush=True,
        )
