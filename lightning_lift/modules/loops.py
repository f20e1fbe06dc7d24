"""The place in the data that a checkpoint states: behind the last optimizer step that is completed."""

from typing import Any

import lightning as L


def settle_loops(checkpoint: dict[str, Any], trainer: L.Trainer) -> None:
    """Put the place in the data back to the last completed optimizer step.

    Lightning counts an interrupted batch as begun for ever, and so takes the next checkpoint of the resumed run for
    another kind than it is. Gradients that were accumulated since the last step are in no checkpoint: their batches are
    to be had again.

    Args:
        checkpoint: as Lightning is about to write it, changed in place.
        trainer: whose fit it is of.
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
    if lost or current["ready"] != done:
        current.update(dict.fromkeys(current, done - lost))
        for state in loop.get("state_dict", {}).get("combined_loader", []):
            if "served" in state:  # a loader of ours
                state["served"] -= lost
    behind = total["processed"] - lost - current["processed"]
    total.update({key: current[key] + behind for key in total})
