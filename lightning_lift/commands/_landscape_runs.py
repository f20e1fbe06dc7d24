"""What ``lightning-lift landscape`` reads: runs with several checkpoints, their modules and their data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor

from lightning_lift.compare import RecordStore, RunRecord
from lightning_lift.datamodules.batches import Batch, concatenated, take_rows
from lightning_lift.datamodules.units import Units
from lightning_lift.modules.base import ConvexModule
from lightning_lift.modules.checkpoints import load_module, read_checkpoint
from lightning_lift.modules.units import units_between
from lightning_lift.partition import Partition
from lightning_lift.settings import instantiated, read_config
from lightning_lift.shipped import current_class_paths
from lightning_lift.trusted import check_named


@dataclass(frozen=True)
class Run:
    """One trajectory.

    Attributes:
        label: in legends and tables.
        steps: optimizer steps of the checkpoints, rising.
        checkpoints: their files.
        data: settings of the data module, ``{class_path, init_args}``.
    """

    label: str
    steps: tuple[int, ...]
    checkpoints: tuple[Path, ...]
    data: dict[str, Any]


def find_runs(paths: Sequence[str], seed: int | None = None, config: str | None = None) -> list[Run]:
    """The runs at these paths.

    Args:
        paths: each the directory of a comparison (every arm of one seed), or a directory with the checkpoints of one
            run somewhere below it; ``LABEL=PATH`` names such a run.
        seed: of a comparison; None for the lowest that most arms have checkpoints of.
        config: a fit configuration that says which data; None for those that the checkpoints name.

    Raises:
        FileNotFoundError: there is no such directory.
        ValueError: too few checkpoints, or two runs of one label.
    """
    data = None if config is None else dict(read_config(config)["data"])
    runs: list[Run] = []
    for text in paths:
        label, _, path = text.rpartition("=")
        directory = Path(path)
        if not directory.is_dir():
            raise FileNotFoundError(f"{path}: no such directory; give a run's, with several checkpoints below it.")
        if any((directory / "records").glob("*.json")):
            runs += _comparison(directory, seed, data)
        else:
            files = sorted(directory.rglob("*.ckpt"))
            runs.append(_run(label or _label(directory), files, data, directory))
    labels = [run.label for run in runs]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise ValueError(f"two runs are called {twice[0]!r}: name them, LABEL=DIRECTORY.")
    return runs


def _label(directory: Path) -> str:
    parts = [part for part in directory.resolve().parts if part != "checkpoints"]
    return "/".join(parts[-2:]) if parts[-1].startswith("version_") else parts[-1]


def _comparison(directory: Path, seed: int | None, data: dict[str, Any] | None) -> list[Run]:
    records = [
        record
        for record in RecordStore(directory).all()
        if record.purpose == "final" and record.outcome == "finished" and len(record.checkpoints) > 1
    ]
    seeds = sorted({record.seed for record in records}, key=lambda s: (-sum(r.seed == s for r in records), s))
    if not seeds:
        raise ValueError(
            f"{directory} holds no finished run with checkpoints along its training: run the comparison with "
            "--checkpoint_every N."
        )
    if seed is not None and seed not in seeds:
        raise ValueError(f"--seed {seed}: {directory} has checkpoints of the seeds {sorted(seeds)}.")
    chosen = seeds[0] if seed is None else seed

    def run(record: RunRecord) -> Run:
        files = [directory / path for path in record.checkpoints.values()]
        return _run(record.arm, files, data or _trusted(record.config["data"], directory), directory)

    return [run(record) for record in records if record.seed == chosen]


def _run(label: str, files: Sequence[Path], data: dict[str, Any] | None, directory: Path) -> Run:
    by_step: dict[int, Path] = {}
    for file in files:
        checkpoint = read_checkpoint(file)
        by_step[int(checkpoint["global_step"])] = file  # the last and the best one may be one of the others
        named = checkpoint.get("datamodule_hyper_parameters", {})
        if data is None and "_class_path" in named:
            init_args = {key: value for key, value in named.items() if not key.startswith("_")}
            data = _trusted({"class_path": named["_class_path"], "init_args": init_args}, file)
    if len(by_step) < 3:
        raise ValueError(
            f"{directory} ({label}) has {len(by_step)} checkpoints of different steps, and a trajectory needs at least "
            "3: fit with a ModelCheckpoint of every_n_train_steps and save_top_k: -1, or compare with "
            "--checkpoint_every N."
        )
    if data is None:
        raise ValueError(f"{directory} ({label}): its checkpoints do not name their data; give --config FILE.")
    steps = tuple(sorted(by_step))
    return Run(label, steps, tuple(by_step[step] for step in steps), data)


def _trusted(settings: Mapping[str, Any], source: Path) -> dict[str, Any]:
    """Settings of a data module that a file names, refused where the file could run something with them."""
    data: dict[str, Any] = current_class_paths(settings)
    try:
        check_named("data", data, (L.LightningDataModule,))
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error
    return data


def load_convex_module(path: Path) -> ConvexModule:
    """The module of a checkpoint, on the CPU, under the weights of evaluation (averaged ones where there are some).

    Args:
        path: the checkpoint's file.

    Raises:
        ValueError: it is of no convex network.
    """
    module = load_module(path)
    if not isinstance(module, ConvexModule):
        raise ValueError(f"{path} is of a {type(module).__name__}, which has no nonnegative weights to slice.")
    return module


@dataclass(frozen=True)
class Rows:
    """What the loss is evaluated on.

    Attributes:
        validation: rows in training units, shape (N, D), or with parts.
        calibration: what a lift conditions on, of the rows of the reference summary.
        window: the data's window, shape (2, D), or None.
    """

    validation: Tensor | Batch
    calibration: tuple[Tensor, ...]
    window: Tensor | None


def load_rows(settings: dict[str, Any], module: ConvexModule, most: int) -> Rows:
    """The first validation rows of the data that a run was fitted to.

    Args:
        settings: of the data module.
        module: of the run.
        most: rows at most.

    Raises:
        ValueError: the data have another dimension or other units than the run's.
    """
    data = instantiated({"data": settings})["data"]
    data.setup("fit")
    if getattr(data, "dim", module.dim) != module.dim:
        raise ValueError(f"{settings['class_path']} has {getattr(data, 'dim', '?')} columns and the run {module.dim}.")
    for name in ("location", "scale"):
        found = getattr(data, name, None)
        if found is not None and not torch.equal(
            torch.as_tensor(found).to(getattr(module, name)), getattr(module, name)
        ):
            raise ValueError(
                f"{settings['class_path']} has another {name} than the run was fitted in: give the --config it had."
            )
    theirs: dict[str, Units] = getattr(data, "field_units", {})
    for name in module.field_units | theirs:
        if units_between(module.field_units.get(name), theirs.get(name), None) is not None:
            raise ValueError(
                f"{settings['class_path']} has other units of {name} than the run was fitted in: give the --config it "
                "had."
            )
    held_out: Tensor | Batch = concatenated(data.val_dataloader())
    rows = take_rows(held_out, slice(0, most))
    calibration = tuple(map(module.conditioning, getattr(data, "calibration_dataloader", list)()))
    return Rows(rows, calibration, getattr(data, "window", None))


def prepare(module: ConvexModule, window: Tensor | None) -> None:
    """Tell the module's estimators of log Z where the data live, as a trainer does.

    Args:
        module: changed in place.
        window: of the data.
    """
    for part in module.modules():
        if isinstance(part, Partition):
            part.prepare(module.support, window)
