"""``lightning-lift export CHECKPOINT``: the frozen model as a file that other programs run or solve."""

import argparse
import logging
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lightning_lift.files import whole_file
from lightning_lift.modules.base import ConvexModule
from lightning_lift.modules.checkpoints import load_module
from lightning_lift.modules.frozen import FrozenDistribution
from lightning_lift.modules.task import TaskModule
from lightning_lift.programs import linear_program
from lightning_lift.programs.function import convex_function

_ENDINGS = {"onnx": (".onnx",), "torch": (".pt2",), "lp": (".lp", ".mps")}
_ROWS = 64  # on which a written model is compared with the checkpoint's
_AGREEMENT = 1e-4  # relative to the largest value: float32, summed in another order
_FAR = 1e4  # |mean| / spread of a column beyond which float32 rows lose digits that the model sees


def main(args: Sequence[str]) -> None:
    """Run the command.

    Args:
        args: the arguments after ``export``.

    Raises:
        ValueError: what the checkpoint or the arguments have wrong, or a model that the format cannot hold.
        FileNotFoundError: there is no such checkpoint or folder.
        ImportError: a package that the format needs is not installed.
    """
    parser = argparse.ArgumentParser(
        prog="lightning-lift export",
        description="Writes what freeze() gives, in original units, for use without this package, and compares the "
        "file with the checkpoint on random rows. onnx and torch: the log-density, the prediction or the energy of "
        "rows, for ONNX Runtime and for torch.export.load. lp: minimise the function (maximise it where it is concave) "
        "as a linear program, to which a solver's user adds constraints on x1, x2, ...",
    )
    parser.add_argument("checkpoint", help="file that fit wrote")
    parser.add_argument("--format", choices=list(_ENDINGS), required=True, help="what to write")
    parser.add_argument(
        "--output", help="file to write; of lp ending in .lp or .mps (default: CHECKPOINT with .onnx, .pt2 or .lp)"
    )
    parser.add_argument(
        "--context", help="lp of a partially convex network: its context, numbers with commas between them"
    )
    parser.add_argument(
        "--max_error", type=float, help="lp of a smooth network: largest error of its value, for tangent planes"
    )
    parsed = parser.parse_args(args)
    source = Path(parsed.checkpoint)
    output = Path(parsed.output) if parsed.output else source.with_suffix(_ENDINGS[parsed.format][0])
    print(export_checkpoint(source, output, parsed.format, _numbers(parsed.context), parsed.max_error))
    print(f"wrote {output}")


def _numbers(text: str | None) -> list[float] | None:
    try:
        return None if text is None else [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ValueError(f"--context {text}: give numbers with commas between them.") from error


def export_checkpoint(
    source: Path, output: Path, form: str, context: Sequence[float] | None = None, max_error: float | None = None
) -> str:
    """Write the frozen model of a checkpoint.

    Args:
        source: the checkpoint to read.
        output: where to write; it appears whole or not at all, and only if it agrees with the checkpoint.
        form: ``onnx``, ``torch`` or ``lp``.
        context: of ``lp`` for a partially convex network, flattened.
        max_error: of ``lp`` for a smooth network, as for ``linear_program``.

    Returns:
        A sentence on what the file takes and how well it agrees.

    Raises:
        ValueError: no checkpoint of this package's tasks, a model that the format cannot hold, or an ``output`` of
            another ending.
        FileNotFoundError: ``source`` or the folder of ``output`` does not exist.
        ImportError: a package that the format needs is not installed.
        RuntimeError: a lift without reference summary, or a file that does not agree with the checkpoint.
    """
    if output.suffix not in _ENDINGS[form]:
        raise ValueError(f"--output {output}: the format {form} is written as {' or '.join(_ENDINGS[form])}.")
    if not output.resolve().parent.is_dir():
        raise FileNotFoundError(f"--output {output}: the folder {output.parent} does not exist.")
    if form != "lp" and (context is not None or max_error is not None):
        raise ValueError(f"--context and --max_error belong to --format lp; a file of {form} takes contexts as inputs.")
    module = load_module(source)
    if not isinstance(module, TaskModule):
        raise ValueError(f"{source} is of {type(module).__name__}, which has no frozen form: export it with torch.")
    try:
        frozen = module.freeze()
    except NotImplementedError as error:
        raise ValueError(f"{source} is of {type(module).__name__}, which has no frozen form.") from error
    inputs = _example(module)
    if form == "lp":
        return _write_program(module, frozen, inputs[0], output, context, max_error)
    with whole_file(output) as temporary, torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporters' own, on torch's internals
        expected = frozen(*inputs)
        given = (_write_torch if form == "torch" else _write_onnx)(frozen, inputs, temporary)
        difference = _difference(expected, given)
    shapes = [str(("N", *part.shape[1:])).replace("'", "") for part in (*inputs, expected)]
    kind = str(inputs[0].dtype).removeprefix("torch.")
    return f"takes {kind} {', '.join(shapes[:-1])}, gives {shapes[-1]}; {difference}"


def _example(module: TaskModule) -> tuple[Tensor, ...]:
    """Random rows in original units, and contexts where the network takes them."""
    generator, units = torch.Generator().manual_seed(0), module.units
    far = bool((units.location.abs() > _FAR * units.spread).any())
    rows = units.invert(torch.randn(_ROWS, module.dim, generator=generator, dtype=torch.float64))
    rows = rows if far else rows.float()
    shape = _context_shape(module)
    return (rows,) if shape is None else (rows, torch.randn(_ROWS, *shape, generator=generator))


def _context_shape(module: TaskModule) -> tuple[int, ...] | None:
    potentials = module.potentials() if isinstance(module, ConvexModule) else ()
    return next((p.network.context_shape for p in potentials if p.network.context_shape is not None), None)


def _write_torch(model: nn.Module, inputs: tuple[Tensor, ...], path: Path) -> Tensor:
    torch.export.save(_exported(model, inputs), path)
    given: Tensor = torch.export.load(path).module()(*inputs)
    return given


def _exported(model: nn.Module, inputs: tuple[Tensor, ...]) -> torch.export.ExportedProgram:
    rows = torch.export.Dim("rows")
    return torch.export.export(model.eval(), inputs, dynamic_shapes=tuple({0: rows} for _ in inputs))


def _write_onnx(model: nn.Module, inputs: tuple[Tensor, ...], path: Path) -> Tensor:
    try:
        import onnx  # noqa: F401  # torch's exporter needs it and says so less clearly
        import onnxruntime
        from onnxscript import opset18
    except ImportError as error:
        raise ImportError("--format onnx needs an extra: pip install 'lightning-lift[onnx]'.") from error

    def log_sigmoid(x: Any) -> Any:  # torch's own translation, log(sigmoid(x)), is -inf far out
        return opset18.Neg(opset18.Softplus(opset18.Neg(x)))

    if isinstance(model, FrozenDistribution) and model.scale.ndim == 2:
        model = _Multiplying(model)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it tells of packages that are of no use here
    names = ["x", "context"][: len(inputs)]
    try:
        program = torch.onnx.export(
            _exported(model, inputs),
            inputs,
            dynamo=True,
            verbose=False,
            input_names=names,
            output_names=["value"],
            custom_translation_table={torch.ops.aten.log_sigmoid.default: log_sigmoid},
        )
    except torch.onnx.errors.OnnxExporterError as error:
        cause = str(error.__cause__ or error)
        raise ValueError(
            f"ONNX has no operators for this model ({cause.splitlines()[0][:160]}): use --format torch. A flow's "
            "log-density has a Cholesky factor, for one."
        ) from error
    assert program is not None
    program.save(path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (given,) = session.run(None, dict(zip(names, (part.numpy() for part in inputs), strict=True)))
    return torch.from_numpy(given)


class _Multiplying(nn.Module):
    """A frozen density on whitened rows without a solver of linear equations, which ONNX does not have."""

    def __init__(self, density: FrozenDistribution) -> None:
        super().__init__()
        self.density = density
        units = density._units(density.location)
        self.register_buffer("inverse", torch.linalg.inv(units.scale))
        self.log_det = float(units.log_det)

    def forward(self, x: Tensor) -> Tensor:
        u = (x.to(self.density.location.dtype) - self.density.location) @ self.get_buffer("inverse").T
        return self.density.log_prob_scaled(self.density._like_weights(u)) - self.log_det


def _write_program(
    module: TaskModule,
    frozen: nn.Module,
    rows: Tensor,
    output: Path,
    context: Sequence[float] | None,
    max_error: float | None,
) -> str:
    if not hasattr(frozen, "convex_function"):
        raise ValueError(
            f"{type(module).__name__} is neither convex nor concave in original units, so there is no program of it: "
            "use --format torch."
        )
    bound, shape = None, _context_shape(module)
    if context is not None:
        if shape is None or len(context) != math.prod(shape):
            needs = "takes no context" if shape is None else f"takes {math.prod(shape)}, shape {shape}"
            raise ValueError(f"--context has {len(context)} numbers, and the network {needs}.")
        bound = torch.tensor(context).reshape(1, *shape)
    elif shape is not None:
        raise ValueError(f"the network takes a context of shape {shape}: give --context, with commas.")
    program, function = linear_program(frozen, bound, max_error=max_error), convex_function(frozen, bound)
    trials = rows.double().numpy()
    if function.support is not None:
        low, high = function.support.double().numpy()
        u = function.to_training(trials)
        trials = trials[((u >= low) & (u <= high)).all(axis=1)]
    given = np.array([program.value(row) for row in trials[:8]])
    difference = _difference(
        torch.from_numpy(function.value_gradient(trials[:8])[0]), torch.from_numpy(given), max_error
    )
    program.write(output)
    purpose = "minimises the" if program.sign > 0 else "minimises minus the concave"
    return f"{purpose} function of x1, ..., x{module.dim}; {difference}"


def _difference(expected: Tensor, given: Tensor, allowed: float | None = None) -> str:
    """A sentence on how two results agree.

    Raises:
        RuntimeError: they do not.
    """
    finite = torch.isfinite(expected)
    worst = float((expected - given)[finite].abs().max()) if finite.any() else 0.0
    scale = 1.0 + (float(expected[finite].abs().max()) if finite.any() else 0.0)
    same = torch.equal(expected[~finite].nan_to_num(), given[~finite].nan_to_num())
    if not same or not worst <= _AGREEMENT * scale + (allowed or 0.0):
        raise RuntimeError(
            f"the file does not agree with the checkpoint: on {len(expected)} random rows it is off by up to "
            f"{worst:.3g}, and nothing was written."
        )
    return f"on {len(expected)} random rows it differs from the checkpoint by at most {worst:.2g}"
