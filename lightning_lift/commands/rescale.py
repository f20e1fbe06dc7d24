"""``lightning-lift rescale CHECKPOINT``: from one checkpoint to a rescaled one of the same function."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import lightning as L
import torch
from torch import Tensor

from lightning_lift.files import whole_file
from lightning_lift.modules.base import ConvexModule
from lightning_lift.modules.checkpoints import StoredModule, load_module, read_checkpoint
from lightning_lift.rescaling.rescale import Method
from lightning_lift.rescaling.whole_module import ModuleRescaling, rescale_module_, transport_states_


def main(args: Sequence[str]) -> None:
    """Run the command.

    Args:
        args: the arguments after ``rescale``.

    Raises:
        ValueError: what the checkpoint or the arguments have wrong.
        FileNotFoundError: there is no such checkpoint.
    """
    parser = argparse.ArgumentParser(
        prog="lightning-lift rescale",
        description="Rescales the hidden units of a checkpoint's ReLU network without changing its function, and "
        "writes a new checkpoint from which fit can go on: its optimizer state is rescaled too.",
    )
    parser.add_argument("checkpoint", help="file that fit wrote")
    parser.add_argument("--method", choices=["pathcond", "enorm"], default="pathcond", help="(default: %(default)s)")
    parser.add_argument("--output", help="file to write (default: CHECKPOINT with -METHOD before its extension)")
    parser.add_argument(
        "--approximate", action="store_true", help="rescale through GELU, SiLU, Softplus too; the function changes"
    )
    parser.add_argument("--max_sweeps", type=int, default=10, help="largest number of sweeps (default: %(default)s)")
    parser.add_argument(
        "--tolerance", type=float, default=1e-2, help="stop when a sweep moves less than it (default: %(default)s)"
    )
    parsed = parser.parse_args(args)
    source = Path(parsed.checkpoint)
    output = Path(parsed.output) if parsed.output else source.with_stem(f"{source.stem}-{parsed.method}")
    rescaling, said = rescale_checkpoint(
        source,
        output,
        parsed.method,
        approximate=parsed.approximate,
        max_sweeps=parsed.max_sweeps,
        tolerance=parsed.tolerance,
    )
    print(f"{rescaling.report}\n  {said}\nwrote {output}")


def rescale_checkpoint(
    source: Path,
    output: Path,
    method: Method = "pathcond",
    *,
    approximate: bool = False,
    max_sweeps: int = 10,
    tolerance: float = 1e-2,
) -> tuple[ModuleRescaling, str]:
    """Write a checkpoint with the rescaled weights and optimizer state of another.

    Args:
        source: the checkpoint to read.
        output: where to write; it appears whole or not at all.
        method: ``pathcond`` or ``enorm``.
        approximate: rescale through smooth activations too.
        max_sweeps: largest number of sweeps.
        tolerance: stop when the sum of |du| over a sweep is below it.

    Returns:
        What was done, and a sentence on the optimizer state.

    Raises:
        ValueError: no checkpoint of this package; averaged weights; a lift; nothing that can be rescaled; an output
            that is the source.
        FileNotFoundError: ``source`` or the folder of ``output`` does not exist.
    """
    checkpoint = read_checkpoint(source)
    if "current_model_state" in checkpoint:
        raise ValueError(
            f"{source} holds averaged weights beside the trained ones, and each would need scales of its own: rescale "
            "a checkpoint of a run without weight averaging."
        )
    if not output.resolve().parent.is_dir():
        raise FileNotFoundError(f"--output {output}: the folder {output.parent} does not exist.")
    if output.resolve() == source.resolve():
        raise ValueError(f"--output {output} is the checkpoint itself: give another name; the original is kept.")
    module = load_module(source)
    if isinstance(module, StoredModule):
        module.on_load_checkpoint(checkpoint)  # of an older format, it is converted with its optimizer states
    rescaling = rescale_module_(
        module,
        method,
        example_input=_example(module),
        approximate=approximate,
        max_sweeps=max_sweeps,
        tolerance=tolerance,
    )
    if rescaling.report.num_units == 0:
        raise ValueError(
            f"{source}: no unit of its network can be rescaled, so nothing was written.\n{rescaling.report}"
        )
    states = [_state_of(module, saved) for saved in checkpoint.get("optimizer_states", [])]
    said = transport_states_(module, cast(Any, states), rescaling)  # in place: these are the checkpoint's tensors
    checkpoint["state_dict"] = module.state_dict()
    with whole_file(output) as temporary:
        torch.save(checkpoint, temporary)
    return rescaling, said


def _example(module: L.LightningModule) -> Any:
    if isinstance(module, ConvexModule):
        dtype = next(module.parameters()).dtype
        return torch.randn(64, module.dim, generator=torch.Generator().manual_seed(0)).to(dtype)
    if module.example_input_array is None:
        raise ValueError(
            f"{type(module).__name__} has no example_input_array, so the input of its forward is not known: set it, or "
            "use the PathConditioning callback."
        )
    return module.example_input_array


def _state_of(module: L.LightningModule, saved: Mapping[str, Any]) -> SimpleNamespace:
    """What stands for an optimizer: the saved state by parameter."""
    parameters = dict(module.named_parameters())
    groups = saved.get("param_groups", [])
    indices = [index for group in groups for index in group["params"]]
    names = [name for group in groups for name in group.get("param_names", [])] or list(parameters)
    state: dict[Tensor, dict[str, Any]] = {}
    if len(names) != len(indices):
        raise ValueError(
            f"the checkpoint's optimizer has {len(indices)} parameters and {type(module).__name__} {len(names)}, so "
            "its state cannot be assigned: pass the optimizer all parameters, or named ones."
        )
    for name, index in zip(names, indices, strict=True):
        entry = saved["state"].get(index)
        if entry:
            shapes = {tuple(v.shape) for k, v in entry.items() if k != "step" and isinstance(v, Tensor) and v.ndim}
            if shapes and tuple(parameters[name].shape) not in shapes:
                raise ValueError(
                    f"the checkpoint's optimizer state number {index} has shapes {sorted(shapes)} and {name} has "
                    f"{tuple(parameters[name].shape)}: its parameters stand in another order than the module's."
                )
            state[parameters[name]] = entry
    return SimpleNamespace(state=state)
