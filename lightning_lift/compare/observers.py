"""Which callbacks of a configuration belong in a comparison, and which only look on."""

from collections.abc import Mapping
from typing import Any

from lightning.pytorch.callbacks import (
    Checkpoint,
    DeviceStatsMonitor,
    EarlyStopping,
    LearningRateMonitor,
    ModelSummary,
    ProgressBar,
    ThroughputMonitor,
    Timer,
)

from lightning_lift.callbacks import PathConditioning
from lightning_lift.compare.arms import imported

_OBSERVERS = (
    Checkpoint,
    DeviceStatsMonitor,
    EarlyStopping,  # it would end arms at different steps
    LearningRateMonitor,
    ModelSummary,
    ProgressBar,
    ThroughputMonitor,
    Timer,
)
_OURS = "lightning_lift.callbacks."
_TRAINING = (PathConditioning,)


def keeps_training(settings: Mapping[str, Any] | str) -> bool:
    """Whether a callback of a configuration belongs in a comparison: one that alters training does.

    Args:
        settings: ``{class_path, init_args}`` of the callback.

    Returns:
        False for what only looks, writes or stops (checkpoints, progress, this package's figures and readings, early
        stopping); True for weight averaging, accumulation, path-conditioning and whatever is not known.
    """
    cls = imported(settings if isinstance(settings, str) else settings["class_path"])
    if not isinstance(cls, type):
        return True
    ours = cls.__module__.startswith(_OURS) and not issubclass(cls, _TRAINING)
    return not (ours or issubclass(cls, _OBSERVERS))
