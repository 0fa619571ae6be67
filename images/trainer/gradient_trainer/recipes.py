"""The settings that each model's authors trained it with: the defaults of the flags.

A model without an entry here, also one in a file of the user's, is trained with the defaults of `Recipe`.
"""

import re
from dataclasses import dataclass

from .errors import OptionsError

OPTIMIZERS = ("adam", "sgd", "nesterov", "torch-sgd", "torch-nesterov")
"""The momentum of `sgd` and `nesterov` is Keras': it holds the learning rate, so that a change of the rate takes effect
over some ten steps. That of the others is PyTorch's, and that of the papers of Page, of Zagoruyko and of Goyal, which
calls the difference "momentum correction"; at a constant rate both are the same."""
SCHEDULES = ("constant", "cosine", "linear", "one-cycle", "piecewise")
AUGMENTATIONS = ("crop", "crop-zeros", "flip", "cutout")
NO_AUGMENTATION = "none"
_SPAN = re.compile(r"(\d+(?:\.\d+)?)(e|%|)")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    optimizer: str = "adam"  # one of OPTIMIZERS; all but the first are SGD with momentum 0.9
    batch_size: int = 128
    learning_rate: float = 0.001
    schedule: str = "cosine"
    warm_up: str = "10%"
    milestones: str = ""  # comma-separated spans; at each the learning rate is multiplied by `milestone_factor`
    milestone_factor: float = 0.1  # see `milestones`
    # For SGD the factor of the weights in the gradient, for Adam the decoupled decay of AdamW. In both an update
    # shrinks a weight by learning rate x decay, once for all replicas.
    weight_decay: float = 0.0
    augment: str = NO_AUGMENTATION  # comma-separated AUGMENTATIONS, or `none`
    length: str = ""  # span of the whole training; empty: what suits the data set

    @property
    def augmentations(self) -> tuple[str, ...]:
        chosen = self.augment.split(",")
        return tuple(name for name in AUGMENTATIONS if name in chosen)


RECIPES = {
    # He et al. 2015, section 4.2: "a mini-batch size of 128", "weight decay of 0.0001 and momentum of 0.9", "learning
    # rate of 0.1, divide it by 10 at 32k and 48k iterations, and terminate training at 64k iterations".
    "resnet32-cifar10": Recipe(
        optimizer="sgd",
        learning_rate=0.1,
        schedule="piecewise",
        warm_up="0",
        milestones="32000,48000",
        weight_decay=0.0001,
        augment="crop-zeros,flip",
        length="64000",
    ),
    # Page 2018, "How to Train Your ResNet", parts 3 and 4: batch 512, 24 epochs, rate 0 -> 0.4 in 5 epochs -> 0;
    # his momentum is `torch-nesterov`.
    "davidnet-cifar10": Recipe(
        optimizer="nesterov",
        batch_size=512,
        learning_rate=0.4,
        schedule="linear",
        warm_up="5e",
        weight_decay=0.0005,
        augment="crop,flip,cutout",
        length="24e",
    ),
    # Zagoruyko and Komodakis 2016, section 3: rate 0.1, "dropped by 0.2 at 60, 120 and 160 epochs", 200 epochs,
    # batch 128, weight decay 0.0005, Nesterov momentum 0.9; in PyTorch's form: `torch-nesterov`.
    "wide-resnet-cifar10": Recipe(
        optimizer="nesterov",
        learning_rate=0.1,
        schedule="piecewise",
        warm_up="0",
        milestones="60e,120e,160e",
        milestone_factor=0.2,
        weight_decay=0.0005,
        augment="crop,flip",
        length="200e",
    ),
    # Goyal et al. 2017, sections 2 and 5: rate 0.1 for a batch of 256, divided by 10 at 30, 60 and 80 of 90 epochs,
    # 5 epochs of warm-up, weight decay 0.0001; his momentum is `torch-nesterov`.
    "resnet50": Recipe(
        optimizer="nesterov",
        batch_size=256,
        learning_rate=0.1,
        schedule="piecewise",
        warm_up="5e",
        milestones="30e,60e,80e",
        weight_decay=0.0001,
        augment="crop,flip",
        length="90e",
    ),
}


def check_span(flag: str, span: str) -> None:
    """Raise if a span is none of `500` (steps), `5e` (epochs) and `10%` (of the training)."""
    if not _SPAN.fullmatch(span):
        raise OptionsError(f"{flag} must be steps (500), epochs (5e) or a share of the training (10%); it is {span!r}")


def span_steps(span: str, per_epoch: int, total: int) -> int:
    """Return the number of steps of a span.

    Args:
        span: A span that `check_span` accepts.
        total: Steps of the whole training, of which a percentage is taken.
    """
    match = _SPAN.fullmatch(span)
    if match is None:
        raise ValueError(span)
    number, unit = float(match[1]), match[2]
    return round(number * {"": 1, "e": per_epoch, "%": total / 100}[unit])
