"""One seed among several that train at once: its looks, its checkpoints, its record."""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor

from lightning_lift.compare.build import make, make_reference, trained_numbers
from lightning_lift.compare.folders import keep
from lightning_lift.compare.hashing import HASHED_BATCHES, data_hash, start_hash
from lightning_lift.compare.outcomes import DivergenceError, check_tested, ending, largest_weight
from lightning_lift.compare.record import Outcome, RunRecord, RunSpec, monitored
from lightning_lift.compare.recorder import as_curves, weight_readings
from lightning_lift.compare.run import plain_metrics, versions
from lightning_lift.compare.stacking import NotVectorizable
from lightning_lift.diagnostics.latent_step import latent_of
from lightning_lift.modules import ConvexModule, ConvexPotentialFlow


class SeedRun:
    """What ``compare.run`` and its ``Recorder`` do for one run, without the training.

    Args:
        spec: the run.
        folder: where checkpoints go, until the record is made.
        checkpoint_every: as ``compare.run.run`` has it.

    Attributes:
        module: to be trained by others.
        settings: of the ``Trainer``.

    Raises:
        NotVectorizable: its module is no task on convex networks.
    """

    module: ConvexModule

    def __init__(self, spec: RunSpec, folder: Path, checkpoint_every: int | None) -> None:
        self.spec = spec
        self.folder = folder
        self.checkpoint_every = checkpoint_every
        reference = make_reference(spec)
        module, self.data, self.settings = make(spec)
        if not isinstance(module, ConvexModule):
            raise NotVectorizable(f"{type(module).__name__} is no task on convex networks")
        self.module = module
        self.num_parameters = trained_numbers(module)
        # Whatever the configuration trains on, seeds that train at once do so on the processor.
        settings = self.settings | {"callbacks": None, "accelerator": "cpu", "devices": 1, "default_root_dir": folder}
        self.trainer = L.Trainer(**settings)
        self.outcome: Outcome | None = None
        self.error: str | None = None
        self.rows: list[dict[str, float]] = []
        self.checkpoints: dict[str, Path] = {}
        self._metrics: dict[str, dict[str, float]] = {}
        self._start_hash = start_hash(module, reference)
        self._start_size = math.nan
        self._seen: list[Tensor] = []
        self._fixed: Tensor | None = None
        self._before: Tensor | None = None
        self._checkpointed = -1
        self._best, self._best_step, self._best_state = math.inf, -1, dict[str, Any]()

    @property
    def alive(self) -> bool:
        """Whether it still trains."""
        return self.outcome is None

    # -- before training --------------------------------------------------------------------------------------------

    def attach(self) -> None:
        """What a fit does before its first batch: data, units, windows, ActNorms, precision."""
        module, data, trainer = self.module, self.data, self.trainer
        data.trainer = trainer
        trainer.datamodule = data  # type: ignore[attr-defined]  # as Lightning's own connector sets it
        module.trainer = trainer
        trainer.strategy.connect(module)
        data.prepare_data()
        data.setup("fit")
        module.setup("fit")
        if str(trainer.precision) == "64-true":
            module.double()
        if isinstance(module, ConvexPotentialFlow):
            rows = module.calibration_dataloader()
            if rows is not None:
                module.start_actnorms(next(iter(rows)).to(next(module.parameters()).dtype))
        module.parameterization.project_()
        module.train()
        self._batches = _forever(data)
        self._start_size = largest_weight(module)

    def next_batch(self) -> Tensor:
        """The next training batch, shape (N, D), in the module's precision."""
        batch = next(self._batches).to(next(self.module.parameters()).dtype)
        if self._fixed is None:
            self._fixed = batch
        if len(self._seen) < HASHED_BATCHES:
            self._seen.append(batch)
        return batch

    # -- looks ------------------------------------------------------------------------------------------------------

    def before_step(self) -> None:
        """Takes the latent before the step that a look will follow."""
        assert self._fixed is not None
        with self._ending_alone():
            self._before = latent_of(self.module, self._fixed)

    def look(self, step: int, seconds: float, loss: float) -> None:
        """Measures and validates after an optimizer step.

        Args:
            step: optimizer steps done.
            seconds: of training so far.
            loss: of the step's batch.
        """
        row = {"step": float(step), "seconds": seconds, "train/loss": loss}
        self.rows.append(row)
        with self._ending_alone():
            self._look(row, step)

    def _look(self, row: dict[str, float], step: int) -> None:
        assert self._fixed is not None
        row |= weight_readings(self.module, self._fixed, self._before)
        self._before = None
        values = self._validate()
        row |= values
        name = monitored(values)
        if name is None:
            return
        if not math.isfinite(values[name]):
            raise DivergenceError(f"{name} is {values[name]} at step {step}")
        if values[name] < self._best:
            self._best, self._best_step = values[name], step
            self._metrics["best"] = values
            self._best_state = copy.deepcopy(self.module.state_dict())

    def diverge(self, step: int, seconds: float, loss: float) -> None:
        """Ends the run at a training loss that is not finite."""
        self.rows.append({"step": float(step), "seconds": seconds, "train/loss": loss})
        self.fail(DivergenceError(f"the training loss is {loss} at step {step}"))

    def fail(self, error: Exception) -> None:
        """Ends the run; whether it has diverged or failed is decided as in a separate run.

        Args:
            error: what happened.
        """
        self.outcome, self.error = ending(error, self.module, self._start_size)
        self._best_state = {}

    @contextmanager
    def _ending_alone(self) -> Iterator[None]:
        """What goes wrong in one seed's own part does not stop the others."""
        try:
            yield
        except Exception as error:
            self.fail(error)

    def _validate(self) -> dict[str, float]:
        self.module.calibrate()
        results = self.trainer.validate(self.module, datamodule=self.data, verbose=False)
        self.module.train()
        return plain_metrics(results)

    # -- checkpoints ------------------------------------------------------------------------------------------------

    def keep(self, step: int) -> None:
        """Writes ``step000100.ckpt``, ... where such were asked for.

        Args:
            step: optimizer steps done.
        """
        every = self.checkpoint_every
        if every is not None and (step == 0 or step // every > self._checkpointed // every):
            self._checkpointed = step
            self._save(f"step{step:06d}", step)

    def _save(self, name: str, step: int) -> None:
        path = self.folder / f"{name}.ckpt"
        self.trainer.save_checkpoint(path, weights_only=True)
        # The trainer has made no steps of its own.
        checkpoint = torch.load(path, weights_only=True, map_location="cpu")
        checkpoint["global_step"] = step
        torch.save(checkpoint, path)
        self.checkpoints[name] = path

    # -- after training ---------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Tests the last state and the best one."""
        with self._ending_alone():
            self._finish()
            self.outcome = "finished"

    def _finish(self) -> None:
        steps = self.spec.steps
        row = self.rows[-1] if self.rows and self.rows[-1]["step"] == steps else {}
        last = {name: value for name, value in row.items() if name.startswith("val/")}
        last = last or self._validate()
        self.module.calibrate()
        self._save("last", steps)
        last |= self._test()
        self._metrics["last"] = last
        if self._best_step in (steps, -1):
            self._save("best", steps)
            self._metrics["best"] = dict(last)
        else:
            self.module.load_state_dict(self._best_state)
            self._save("best", self._best_step)
            self._metrics["best"] = self._metrics["best"] | self._test()
        self._best_state = {}
        check_tested(self._metrics)

    def _test(self) -> dict[str, float]:
        return plain_metrics(self.trainer.test(self.module, datamodule=self.data, verbose=False))

    def record(self, timings: dict[str, float], directory: Path) -> RunRecord:
        """The record; the folder of checkpoints takes its place where the run finished and is final.

        Args:
            timings: shares of the whole batch's.
            directory: of the comparison.
        """
        assert self.outcome is not None
        finished = self.outcome == "finished"
        kept: dict[str, str] = {}
        if finished and self.spec.purpose == "final":
            kept = keep(self.folder, directory, self.spec.key, self.checkpoints)
        return RunRecord.of(
            self.spec,
            self.outcome,
            error=self.error,
            engine="vectorized",
            metrics=self._metrics if finished else {},
            curves=as_curves(self.rows),
            timings=timings,
            num_parameters=self.num_parameters,
            start_hash=self._start_hash,
            data_hash=data_hash(self._seen) if finished or len(self._seen) == HASHED_BATCHES else "",
            checkpoints=kept,
            versions=versions(),
        )


def _forever(data: L.LightningDataModule) -> Iterator[Tensor]:
    loader = data.train_dataloader()
    while True:
        yield from loader
