"""The place in the data that a checkpoint states: behind the last optimizer step that is completed."""

from typing import Any

import lightning as L
from torch import nn


def forward_state(module: nn.Module) -> dict[str, Any]:
    """What a forward in training mode may move (buffers, extra states), by its names in ``state_dict``; copied.

    Args:
        module: any; its parts replace the entries of their extra states, and do not write into them.
    """
    state: dict[str, Any] = {}
    for name, part in module.named_modules():
        prefix = f"{name}." if name else ""
        if type(part).get_extra_state is not nn.Module.get_extra_state:
            state[f"{prefix}_extra_state"] = part.get_extra_state()
        for key, buffer in part._buffers.items():
            if buffer is not None and key not in part._non_persistent_buffers_set:
                state[prefix + key] = buffer.detach().clone()
    return state


def settle_loops(checkpoint: dict[str, Any], trainer: L.Trainer, before: tuple[int, dict[str, Any]] | None) -> None:
    """Put the place in the data back to the last completed optimizer step.

    Lightning counts an interrupted batch as begun for ever, and so takes the next checkpoint of the resumed run for
    another kind than it is. Gradients that were accumulated since the last step are in no checkpoint: their batches are
    to be had again, and what their forwards have moved is put back.

    Args:
        checkpoint: as Lightning is about to write it, changed in place.
        trainer: whose fit it is of.
        before: batches processed before the present step, and the module's ``forward_state`` then.
    """
    loop = checkpoint.get("loops", {}).get("fit_loop", {})
    progress = loop.get("epoch_loop.batch_progress")
    module = trainer.lightning_module
    if progress is None or trainer.state.fn != "fit" or not module.automatic_optimization:
        return
    current, total = progress["current"], progress["total"]
    done, lost = current["processed"], 0
    if done < trainer.num_training_batches:  # Lightning steps on the last batch of an epoch
        lost = done % trainer.accumulate_grad_batches
    begun = total["processed"] - lost
    if lost or current["ready"] != done:
        current.update(dict.fromkeys(current, done - lost))
        for state in loop.get("state_dict", {}).get("combined_loader", []):
            if "served" in state:  # a loader of ours
                state["served"] -= lost
    behind = begun - current["processed"]
    total.update({key: current[key] + behind for key in total})
    key = "current_model_state" if "current_model_state" in checkpoint else "state_dict"  # beside averaged weights
    if before is not None and before[0] == begun and key in checkpoint:
        checkpoint[key] = {**checkpoint[key], **before[1]}
