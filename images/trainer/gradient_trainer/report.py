"""Writes and prints a training's result."""

from pathlib import Path

from .pace import WARM_UP_STEPS
from .result import TrainResult
from .terminal import say


def write_result(result: TrainResult, output: Path) -> None:
    """Write `result.json`, atomically."""
    partial = output / "result.json.partial"
    partial.write_text(result.as_json() + "\n", encoding="utf-8")
    partial.replace(output / "result.json")


def pace_words(steps_per_second: float | None, examples_per_second: float | None) -> str:
    """Format a pace for the user."""
    if steps_per_second is None or examples_per_second is None:
        return "(warming up)"
    return f"{steps_per_second:.1f} steps/s  {examples_per_second:,.0f} examples/s"


def summarize(result: TrainResult) -> None:
    """Print the result, the last line as JSON."""
    say("")
    if result.test_accuracy is not None:
        say(f"test accuracy  {result.test_accuracy:.2%} of {result.test_examples:,} images")
        say(f"test loss      {result.test_loss:.4f}")
    if result.steps_per_second is None:
        say(f"pace           not measured: no step after the first {WARM_UP_STEPS} of this run")
    else:
        pace = pace_words(result.steps_per_second, result.examples_per_second)
        say(f"pace           {pace}, without the first {WARM_UP_STEPS} steps, checkpoints and evaluation")
    say(f"time           {result.seconds:.1f} s")
    say(f"outputs        {result.output}: model.keras, result.json, checkpoints/, tensorboard/")
    say(f"RESULT {result.as_json()}")
