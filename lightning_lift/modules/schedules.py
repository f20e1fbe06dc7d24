"""Resuming under other settings than the checkpoint's: the module's rate and schedule win, its optimizer does not."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from lightning_lift.modules.checkpoints import class_of
from lightning_lift.modules.factories import factory, plain
from lightning_lift.trusted import resolve_class

_PROGRESS = ("best", "num_bad_epochs", "cooldown_counter", "last_epoch", "_last_lr", "_step_count")  # of a plateau's


def renew_schedule(checkpoint: dict[str, Any], own: Mapping[str, Any], optimizer: Callable[..., Any]) -> None:
    """Put the module's own schedule into a checkpoint that was written under another, and say so in one line.

    A scheduler's stored state holds the arguments of its constructor (``T_max``, ``milestones``, ...), which would
    replace the new ones in silence. The new schedule is replayed from the start: the rate is what it would be at this
    step had it been used all along. Nothing changes where the module states neither, or the same.

    Args:
        checkpoint: about to be resumed, changed in place.
        own: the module's plain hyperparameters; ``lr_scheduler`` and ``learning_rate`` are read.
        optimizer: the module's factory.
    """
    changes = _changes(own, checkpoint.get("hyper_parameters", {}))
    groups = [group for state in checkpoint.get("optimizer_states", []) for group in state["param_groups"]]
    if not changes or not groups:
        return
    rank_zero_info(f"Resuming with {', '.join(changes)}: the present settings win over the checkpoint's.")
    dummy = optimizer([{"params": [torch.nn.Parameter(torch.zeros(()))]} for _ in groups])
    for new, old in zip(dummy.param_groups, groups, strict=True):
        kept = {key: value for key, value in old.items() if key not in ("params", "initial_lr")}
        new.update(kept, lr=own.get("learning_rate") or old.get("initial_lr", old["lr"]))
    states = checkpoint.setdefault("lr_schedulers", [])
    if own.get("lr_scheduler") is not None:
        scheduler = factory("lr_scheduler", own["lr_scheduler"], LRScheduler)(dummy)
        if isinstance(scheduler, ReduceLROnPlateau):  # depends on the metrics so far, which cannot be replayed
            states[:] = [
                {**state, **{key: value for key, value in scheduler.state_dict().items() if key not in _PROGRESS}}
                for state in states
            ]
            return
        dummy.step()
        for _ in range(states[0].get("last_epoch", 0) if states else checkpoint["global_step"]):
            scheduler.step()
        states[:] = [scheduler.state_dict()]
    for new, old in zip(dummy.param_groups, groups, strict=True):
        old.update({key: value for key, value in new.items() if key != "params"})


def check_optimizer(checkpoint: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Refuse to resume under another class of optimizer; warn of settings that the checkpoint's replace.

    Args:
        checkpoint: about to be resumed.
        own: the module's plain hyperparameters.

    Raises:
        ValueError: another class, whose state is not this one's.
    """
    ours, theirs = (settings.get("optimizer") for settings in (own, checkpoint.get("hyper_parameters", {})))
    if not ours or not theirs:
        return
    kinds = [
        resolve_class("optimizer", settings["class_path"], (torch.optim.Optimizer,)) for settings in (ours, theirs)
    ]
    if not (issubclass(*kinds) or issubclass(*reversed(kinds))):  # a subclass has the same state
        raise ValueError(
            f"the checkpoint was trained by {theirs['class_path']} and this module has {ours['class_path']}: resume "
            "under the same optimizer, or start a new fit from the weights (load_from_checkpoint)."
        )
    now, before = (settings.get("init_args", {}) for settings in (ours, theirs))
    for key in now.keys() & before.keys():
        if plain(key, now[key]) != plain(key, before[key]):
            rank_zero_warn(
                f"optimizer.{key}={now[key]!r} is replaced by the checkpoint's {before[key]!r}: a resumed optimizer "
                "keeps its settings; give learning_rate to change the rate."
            )


def _changes(own: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """What the module states and the checkpoint has otherwise, as ``name=new (was old)``."""
    changes = []
    rate, before = own.get("learning_rate"), theirs.get("learning_rate")
    if rate is not None and rate != before:
        changes.append(f"learning_rate={rate} (was {before})")
    ours, old = own.get("lr_scheduler"), theirs.get("lr_scheduler")
    if not ours or ours == old:
        return changes
    if not old or class_of(old["class_path"]) != class_of(ours["class_path"]):
        return [*changes, f"lr_scheduler={ours['class_path']} (was {old and old['class_path']})"]
    defaults = plain("lr_scheduler", factory("lr_scheduler", {"class_path": ours["class_path"]}, LRScheduler))[
        "init_args"
    ]
    ours, old = ({**defaults, **settings.get("init_args", {})} for settings in (ours, old))
    return changes + [
        f"lr_scheduler.{key}={value} (was {old.get(key)})" for key, value in ours.items() if old.get(key) != value
    ]
