"""Follow each weight's visits to the shoulder through training."""

from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import Tensor

from lightning_lift.callbacks._logging import is_recorded, log_scalars, publish_figure, run_directory
from lightning_lift.callbacks._visits_plot import VisitsPicture, visits_figure
from lightning_lift.callbacks.periodic import PeriodicCallback, check_count, latent_now
from lightning_lift.diagnostics.shoulder import SHOULDER_SLOPE, inside_mask, parameterization_floor, shoulder_threshold
from lightning_lift.diagnostics.visits import VisitCounter, VisitSummary
from lightning_lift.files import whole_file
from lightning_lift.parameterizations.base import Parameterization


class ShoulderVisits(PeriodicCallback):
    """Count how weights come onto the shoulder {psi' <= slope} and leave it, and for how long they stay.

    A look takes the latent conditioned on the batch at hand, so that a lift's visits hold the batch's own influence.
    Lengths are right-censored at the last look and estimated by Kaplan-Meier; the visits of weights that start on the
    shoulder are left-truncated and dropped. Terms and rates are explained at
    ``lightning_lift.diagnostics.visits.VisitSummary``.

    Every ``report_every_n_steps`` and at the end of training it logs ``shoulder_visits/<number>`` (``ever_left``,
    ``absorbed``, ``entry_rate``, ``visit_median``, ...), and writes ``shoulder_visits.npz`` and
    ``figures/shoulder_visits.png`` beside the logs: the survival curve, occupancy over the steps, and the latents of a
    few weights. Projected weights have no shoulder: for them it follows the weights exactly at the floor, under
    ``zero_visits``.

    Args:
        every_n_steps: optimizer steps from one look to the next; the first is before training. Lengths of visits are
            known to within this.
        report_every_n_steps: optimizer steps from one report to the next.
        slope: the shoulder's slope psi'(latent).
        absorbed_after: a weight counts as absorbed when it has been inside for at least so many steps up to the last
            look.
        num_trajectories: weights, drawn at random, whose latents are kept at each look.
        coordinates: indices of these weights in the flat latent, in place of random ones.
        seed: of the random choice of weights.

    Raises:
        ValueError: an argument out of range.
    """

    label = "shoulder_visits"
    looks_at_start = True

    def __init__(
        self,
        every_n_steps: int = 10,
        report_every_n_steps: int = 1000,
        slope: float = SHOULDER_SLOPE,
        absorbed_after: int = 100,
        num_trajectories: int = 8,
        coordinates: list[int] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(every_n_steps)
        check_count("report_every_n_steps", report_every_n_steps)
        check_count("absorbed_after", absorbed_after, least=0)
        check_count("num_trajectories", num_trajectories, least=0)
        check_count("seed", seed, least=0)
        if not 0.0 < slope < float("inf"):
            raise ValueError(f"slope={slope}: the shoulder's slope must be finite and positive (default 0.05).")
        self.report_every_n_steps = report_every_n_steps
        self.slope = slope
        self.absorbed_after = absorbed_after
        for index in coordinates or ():
            check_count("coordinates", index, least=0)
        self.num_trajectories = num_trajectories
        self.coordinates = None if coordinates is None else sorted(set(coordinates))
        self.seed = seed
        self._forget()

    def _forget(self) -> None:
        self.counter = VisitCounter()
        self._steps: list[int] = []
        self._occupancy: list[float] = []
        self._latents: list[Tensor] = []
        self._reported = 0

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Refuse coordinates that the model does not have.

        Raises:
            ValueError: one of them is not below the number of constrained weights.
        """
        super().setup(trainer, pl_module, stage)
        if self._active and self.coordinates:
            parameterization = pl_module.parameterization
            assert isinstance(parameterization, Parameterization)
            if self.coordinates[-1] >= parameterization.num_weights:
                raise ValueError(
                    f"coordinates={self.coordinates}: the model has {parameterization.num_weights} constrained "
                    "weights, numbered from 0."
                )

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start counting; a training from step 0 has no looks before it."""
        super().on_train_start(trainer, pl_module)
        if trainer.global_step == 0:
            self._forget()

    def look(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, step: int) -> None:
        """Take in one look, and report when it is time."""
        latent = latent_now(pl_module, batch)
        if not trainer.is_global_zero:
            return
        if not bool(latent.isfinite().all()):
            self.warn_once(f"the latent is not finite at step {step}: the model has diverged.", key="diverged")
            return
        parameterization = pl_module.parameterization
        assert isinstance(parameterization, Parameterization)
        mask = inside_mask(parameterization, latent, self.slope)
        self.counter.update(mask, step)
        self._steps.append(step)
        self._occupancy.append(mask.double().mean().item())
        self._latents.append(latent[self._coordinates(latent.numel()).to(latent.device)].float().cpu())
        if step // self.report_every_n_steps > self._reported // self.report_every_n_steps:
            self._report(trainer, parameterization)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Report what was seen after the last report."""
        if self._active and trainer.is_global_zero and self._steps and self._steps[-1] > self._reported:
            parameterization = pl_module.parameterization
            assert isinstance(parameterization, Parameterization)
            self._report(trainer, parameterization)

    def _coordinates(self, size: int) -> Tensor:
        if self.coordinates is not None:
            return torch.tensor(self.coordinates, dtype=torch.int64)
        order = torch.randperm(size, generator=torch.Generator().manual_seed(self.seed))
        return order[: self.num_trajectories].sort().values

    def _report(self, trainer: L.Trainer, parameterization: Parameterization) -> None:
        step = self._reported = self._steps[-1]
        summary = self.counter.summary(self.absorbed_after)
        group = self.name(trainer, "zero_visits" if parameterization.readout is None else None)
        log_scalars(trainer, {f"{group}/{name}": value for name, value in summary.scalars().items()}, step)
        picture = VisitsPicture(
            steps=np.array(self._steps, dtype=float),
            occupancy=np.array(self._occupancy),
            latents=torch.stack(self._latents).double().numpy(),
            coordinates=self._coordinates(parameterization.num_weights).numpy(),
            threshold=self._threshold(parameterization),
            survival=summary.survival,
            what="at the floor" if parameterization.readout is None else "on the shoulder",
        )
        folder = run_directory(trainer)
        if folder is not None:
            _write(folder / f"{group}.npz", picture, summary)
        if is_recorded(trainer):
            publish_figure(trainer, visits_figure(picture), group, f"{group}.png", step)

    def _threshold(self, parameterization: Parameterization) -> float | None:
        if parameterization.readout is None:
            return parameterization_floor(parameterization)
        try:
            return shoulder_threshold(parameterization.readout, self.slope)
        except ValueError:  # a readout whose shoulder is not all that lies below one latent
            return None

    def state_dict(self) -> dict[str, Any]:
        """All looks so far, so that a resumed training goes on with them."""
        return {
            "counter": self.counter.state_dict(),
            "steps": list(self._steps),
            "occupancy": list(self._occupancy),
            "latents": list(self._latents),
            "reported": self._reported,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what ``state_dict`` gave."""
        self.counter = VisitCounter()
        self.counter.load_state_dict(state_dict["counter"])
        self._steps, self._occupancy = list(state_dict["steps"]), list(state_dict["occupancy"])
        self._latents = [row.cpu() for row in state_dict["latents"]]
        self._reported = state_dict["reported"]


def _write(path: Path, picture: VisitsPicture, summary: VisitSummary) -> None:
    curve = summary.survival
    arrays: dict[str, Any] = {
        "steps": picture.steps,
        "occupancy": picture.occupancy,
        "coordinates": picture.coordinates,
        "latents": picture.latents,
        "lengths": curve.times.numpy(),
        "survival": curve.survival.numpy(),
        "survival_error": curve.error.numpy(),
        "at_risk": curve.at_risk.numpy(),
        "ended": curve.ended.numpy(),
        "censored": curve.censored.numpy(),
        "dropped": np.array(summary.dropped),
    }
    arrays |= {name: np.array(value) for name, value in summary.scalars().items() if name not in arrays}
    with whole_file(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)
