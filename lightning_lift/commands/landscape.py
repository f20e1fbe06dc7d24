"""``lightning-lift landscape RUN [RUN ...]``: two-dimensional slices of the loss around finished trainings."""

import argparse
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor

from lightning_lift.commands._landscape_figure import Panel, draw_landscape
from lightning_lift.commands._landscape_grid import Slice, SliceJob, fill
from lightning_lift.commands._landscape_runs import (
    Rows,
    Run,
    find_runs,
    load_convex_module,
    load_rows,
    prepare,
)
from lightning_lift.compare.engines.local import available_cores
from lightning_lift.diagnostics.landscape import Plane, plane_through, principal_plane, slice_axes
from lightning_lift.diagnostics.weight_spaces import TrainedSpace, evaluation_loss, network_weights
from lightning_lift.files import whole_file
from lightning_lift.parameterizations import Lift, Parameterization, ProjectedGradient, names

_ROUNDING = 1e-6  # a weight below 0 by less is one that a projection put to 0


def main(args: Sequence[str]) -> None:
    """Run the command.

    Args:
        args: the arguments after ``landscape``.

    Raises:
        ValueError: what the runs or the arguments have wrong.
        FileNotFoundError: there is no such directory.
    """
    parser = argparse.ArgumentParser(
        prog="lightning-lift landscape",
        description="Slices of the loss on validation rows, in evaluation mode. Weights: the plane through the ends of "
        "a lift and of a PGD run along the leading orthogonal direction of all trajectories; theta and the network's "
        "free weights together. Lift: all that the lift trains, along its trajectory's two principal directions, "
        "filter-normalised. Kill it and call it again: only missing points are evaluated.",
    )
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="directory of a comparison run with --checkpoint_every, or of a run with several checkpoints; "
        "LABEL=DIRECTORY names a run",
    )
    parser.add_argument(
        "--through",
        help="labels A,B of the two runs whose ends the first plane goes through (default: a lift and a projected "
        "gradient)",
    )
    parser.add_argument("--seed", type=int, help="of a comparison's runs (default: the lowest with checkpoints)")
    parser.add_argument("--config", help="fit configuration that says which data (default: what the checkpoints name)")
    parser.add_argument("--points", type=int, default=41, help="grid points along each axis (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=2000, help="validation rows (default: %(default)s)")
    parser.add_argument("--jobs", type=int, help="processes, one thread each (default: the cores there are)")
    parser.add_argument("--output", default="runs/landscape", help="directory to write to (default: %(default)s)")
    parsed = parser.parse_args(args)
    for name in ("points", "rows", "jobs"):
        value = getattr(parsed, name)
        if value is not None and value < (2 if name == "points" else 1):
            raise ValueError(f"--{name} {value}: give at least {2 if name == 'points' else 1}.")

    trajectories = [load_trajectory(run) for run in find_runs(parsed.runs, parsed.seed, parsed.config)]
    _check_one_data_set(trajectories)
    output = Path(parsed.output)
    console = Console()
    with Progress(console=console, transient=True) as bar:
        panels = [
            _panel(which, trajectories, parsed.through, parsed.rows, parsed.points)
            for which in ("weights", "lift")
            if which == "weights" or _lifts(trajectories)
        ]
        slices = []
        for planned in panels:
            task = bar.add_task(planned.name, total=parsed.points**2)
            path = output / f"slice_{planned.name}.npz"
            jobs = parsed.jobs or available_cores()
            slices.append(fill(planned.job, path, jobs, functools.partial(bar.advance, task)))
    # Orange, red, brown, ...: what stands out from the contours; a run has one colour in both panels.
    colors = {t.run.label: f"C{(2 * index + 1) % 10}" for index, t in enumerate(trajectories)}
    drawn = [_drawn(planned, filled, colors) for planned, filled in zip(panels, slices, strict=True)]
    with whole_file(output / "landscape.png") as temporary:
        draw_landscape(drawn).savefig(temporary, format="png", dpi=120)
    _save(output / "landscape.npz", panels, slices)
    for planned, filled in zip(panels, slices, strict=True):
        console.print(_table(planned, filled))
    for line in _notes(panels, slices):
        console.print(line, highlight=False, markup=False)
    console.print(f"wrote landscape.png and landscape.npz under {output}", highlight=False, markup=False)


@dataclass(frozen=True)
class Trajectory:
    """A run with what its checkpoints hold.

    Attributes:
        run: its files.
        weights: theta and the network's free weights of each checkpoint under evaluation, shape (T, P).
        parameterization: its class.
        is_lift: whether it has a lift with body and slack.
    """

    run: Run
    weights: Tensor
    parameterization: type[Parameterization]
    is_lift: bool


@dataclass(frozen=True)
class Planned:
    """A slice to be evaluated.

    Attributes:
        name: ``weights`` or ``lift``.
        title: over its panel.
        job: the slice.
        coordinates: of the projected trajectories, (T, 2) by label.
        inside: by label, the fraction of the trajectory's variance that the plane holds.
        explained: fractions of all trajectories' variance along each direction, and in the plane.
        end_losses: of each run's last checkpoint under its own numbers, by label.
        start_losses: likewise of its first one: where the slice says otherwise, the start lies off the plane.
    """

    name: str
    title: str
    job: SliceJob
    coordinates: dict[str, Tensor]
    inside: dict[str, float]
    explained: tuple[float, float, float]
    end_losses: dict[str, float]
    start_losses: dict[str, float]


def load_trajectory(run: Run) -> Trajectory:
    """The weights of every checkpoint of a run.

    Args:
        run: its files.

    Raises:
        ValueError: checkpoints of different networks.
    """
    modules = [load_convex_module(path) for path in run.checkpoints]
    weights = [network_weights(module) for module in modules]
    known = sorted(weights[0])
    for path, found in zip(run.checkpoints, weights, strict=True):
        if sorted(found) != known:
            raise ValueError(f"{path} is of another network than the first checkpoint of {run.label}.")
    vectors = torch.stack([torch.cat([found[name].reshape(-1) for name in known]) for found in weights])
    parameterization = modules[-1].parameterization
    is_lift = isinstance(parameterization, Lift) and parameterization.slack is not None
    return Trajectory(run, vectors, type(parameterization), is_lift)


def _check_one_data_set(trajectories: Sequence[Trajectory]) -> None:
    first = trajectories[0]
    for other in trajectories[1:]:
        if other.weights.shape[1] != first.weights.shape[1]:
            raise ValueError(
                f"{other.run.label} has {other.weights.shape[1]} weights and {first.run.label} "
                f"{first.weights.shape[1]}: a plane needs runs of one network."
            )
        if other.run.data != first.run.data:
            raise ValueError(
                f"{other.run.label} and {first.run.label} were fitted to different data: slice them apart, or give the "
                "data with --config."
            )


def _ends(trajectories: Sequence[Trajectory], through: str | None) -> tuple[Trajectory, Trajectory]:
    by_label = {t.run.label: t for t in trajectories}
    if through is not None:
        labels = through.split(",")
        unknown = [label for label in labels if label not in by_label]
        if len(labels) != 2 or unknown:
            raise ValueError(f"--through {through}: give two labels of {', '.join(by_label)}, separated by a comma.")
        return by_label[labels[0]], by_label[labels[1]]
    lifts = _lifts(trajectories)
    projected = [t for t in trajectories if issubclass(t.parameterization, ProjectedGradient)]
    if not lifts or not projected:
        raise ValueError(
            f"the first plane goes through the ends of a lift and of a projected gradient, and the runs are "
            f"{', '.join(by_label)}: give both, or name two runs with --through A,B."
        )
    return lifts[0], projected[0]


def _lifts(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Lifts with a slack, the paper's own before the controls that derive from it."""
    own = (Lift, names.lift)
    return sorted((t for t in trajectories if t.is_lift), key=lambda t: t.parameterization not in own)


def _panel(
    which: str, trajectories: Sequence[Trajectory], through: str | None, most_rows: int, num_points: int
) -> Planned:
    if which == "weights":
        first, second = _ends(trajectories, through)
        shown = list(trajectories)
        points = {t.run.label: t.weights for t in shown}
        plane = plane_through(first.weights[-1], second.weights[-1], torch.cat(list(points.values())))
        title = "weights of the network: theta and free weights"
    else:
        first = _lifts(trajectories)[0]
        shown = [first]
        points, plane = _trained_plane(first)
        title = f"{first.run.label}: body, emission, slack and free weights"
    module = load_convex_module(first.run.checkpoints[-1])
    rows = load_rows(first.run.data, module, most_rows)
    coordinates = {label: plane.project(vectors) for label, vectors in points.items()}
    axes = slice_axes(torch.cat(list(coordinates.values())), num_points)
    space = "network" if which == "weights" else "trained"
    job = SliceJob(space, first.run.checkpoints[-1], rows, plane, axes)  # type: ignore[arg-type]
    job.open().loss(plane.origin, strict=True)  # an end without a loss is a fault, not a point without a value
    starts, ends = (
        {t.run.label: _own_loss(t.run.checkpoints[place], rows, strict=place == -1) for t in shown} for place in (0, -1)
    )
    inside = {label: plane.explained(vectors)[2] for label, vectors in points.items()}
    explained = plane.explained(torch.cat(list(points.values())))
    return Planned(which, title, job, coordinates, inside, explained, ends, starts)


def _own_loss(checkpoint: Path, rows: Rows, strict: bool) -> float:
    own = load_convex_module(checkpoint)
    prepare(own, rows.window)
    return evaluation_loss(own, rows.validation, strict=strict)


def _trained_plane(trajectory: Trajectory) -> tuple[dict[str, Tensor], Plane]:
    space = TrainedSpace(load_convex_module(trajectory.run.checkpoints[-1]), torch.empty(0), ())
    states = [load_convex_module(path).state_dict() for path in trajectory.run.checkpoints]
    vectors = torch.stack([space.vector(state) for state in states])
    return {trajectory.run.label: vectors}, principal_plane(vectors, space.filter_sizes)


def _drawn(planned: Planned, filled: Slice, colors: dict[str, str]) -> Panel:
    along = planned.explained
    axes = ("from end to end", "leading orthogonal direction")
    if planned.name == "lift":
        axes = ("principal direction 1", "principal direction 2")
    labels = [f"{axis} ({100.0 * part:.0f} % of the variance)" for axis, part in zip(axes, along[:2], strict=True)]
    return Panel(
        title=planned.title,
        x=planned.job.axes[0].numpy(),
        y=planned.job.axes[1].numpy(),
        loss=filled.loss,
        infeasible=filled.lowest < -_ROUNDING,
        trajectories={
            f"{label} ({100.0 * planned.inside[label]:.0f} % in the plane)": points.numpy()
            for label, points in planned.coordinates.items()
        },
        colors=tuple(colors[label] for label in planned.coordinates),
        labels=(labels[0], labels[1]),
        lowest_known=min(planned.end_losses.values()),
    )


def _table(planned: Planned, filled: Slice) -> Table:
    table = Table(title=f"{planned.name}: losses in nats")
    for name in ("run", "in the plane", "own start", "slice there", "own end", "slice there"):
        table.add_column(name, justify="left" if name == "run" else "right")
    space = planned.job.open()
    for label, points in planned.coordinates.items():
        start, end = (space.loss(planned.job.plane.point(points[index])) for index in (0, -1))
        share = f"{100.0 * planned.inside[label]:.1f} %"
        losses = (planned.start_losses[label], start, planned.end_losses[label], end)
        table.add_row(label, share, *(f"{value:.4f}" for value in losses))
    return table


def _notes(panels: Sequence[Planned], slices: Sequence[Slice]) -> list[str]:
    notes = []
    for planned, filled in zip(panels, slices, strict=True):
        finite = np.isfinite(filled.loss)
        if finite.any():
            notes.append(
                f"{planned.name}: lowest loss of the grid {np.nanmin(filled.loss):.4f}; its plane holds "
                f"{100.0 * planned.explained[2]:.1f} % of the trajectories' variance."
            )
        negative = filled.lowest < -_ROUNDING
        if negative.any():
            notes.append(
                f"{planned.name}: at {100.0 * negative.mean():.0f} % of the points a constrained weight is negative "
                f"(down to {np.nanmin(filled.lowest):.3g}; hatched). The network need not be convex there: such points "
                "are evaluated as they are, not clamped, and are no points that training could reach."
            )
        if not finite.all():
            notes.append(f"{planned.name}: no finite loss at {int((~finite).sum())} points (grey).")
    return notes


def _save(path: Path, panels: Sequence[Planned], slices: Sequence[Slice]) -> None:
    arrays: dict[str, object] = {}
    for planned, filled in zip(panels, slices, strict=True):
        name = planned.name
        arrays[f"{name}_x"], arrays[f"{name}_y"] = (axis.numpy() for axis in planned.job.axes)
        arrays[f"{name}_loss"] = filled.loss
        arrays[f"{name}_lowest_weight"] = filled.lowest
        arrays[f"{name}_explained"] = np.array(planned.explained)
        for label, points in planned.coordinates.items():
            arrays[f"{name}_trajectory_{label}"] = points.numpy()
            arrays[f"{name}_end_loss_{label}"] = planned.end_losses.get(label, math.nan)
            arrays[f"{name}_start_loss_{label}"] = planned.start_losses.get(label, math.nan)
    with whole_file(path) as temporary:
        np.savez(temporary, **arrays)  # type: ignore[arg-type]
