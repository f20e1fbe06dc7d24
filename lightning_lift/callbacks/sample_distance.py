"""Distance of the model's samples to held-out rows, logged in test."""

from typing import Any

import lightning as L
import torch
from torch import Tensor

from lightning_lift.callbacks._scheduled_figure import held_out_rows
from lightning_lift.callbacks.periodic import ReportingCallback, check_count
from lightning_lift.diagnostics.probe import undisturbed
from lightning_lift.metrics.two_sample import energy_distance, maximum_mean_discrepancy


class SampleDistance(ReportingCallback):
    """Compare samples of the model with test rows: unlike a likelihood, it needs no log-partition.

    Logged in test, in training units: ``test/energy_distance`` and ``test/mmd`` (squared, Gaussian kernel of the
    median distance between rows), both unbiased and so slightly negative at times for a perfect model, with
    ``..._standard_error`` each; and ``test/energy_distance_held_out``, between one half of those rows and the other:
    the size of what chance alone gives. A model whose samples are indistinguishable is within two or three standard
    errors of zero; both look at the coarse shape, and fine structure shows in the likelihood. Needs
    ``sample_scaled(n, generator)`` of the module; works for energy-based models and flows alike.

    Args:
        num_samples: draws of the model, and at most so many test rows (all pairs are compared).

    Raises:
        ValueError: fewer than four.
    """

    label = "sample_distance"

    def __init__(self, num_samples: int = 2000) -> None:
        super().__init__()
        check_count("num_samples", num_samples, least=4)
        self.num_samples = num_samples

    def on_test_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Draw, compare and log."""
        data = getattr(trainer, "datamodule", None)
        if data is None or not callable(getattr(pl_module, "sample_scaled", None)):
            name = type(pl_module).__name__
            missing = "the trainer has no data module" if data is None else f"{name} has no sample_scaled"
            self.warn_once(f"{missing}, so samples are not compared.")
            return
        calibrate = getattr(pl_module, "calibrate", None)
        if callable(calibrate):
            calibrate()
        if not trainer.is_global_zero:
            return
        try:
            with undisturbed(pl_module), torch.no_grad():
                pl_module.eval()
                figures = self._compare(pl_module, data)
        except (ValueError, ArithmeticError, RuntimeError) as error:
            self.warn_once(f"samples were not compared: {error}", key="failed")
            return
        for name, value in figures.items():
            pl_module.log(self.name(trainer, f"test/{name}"), value, rank_zero_only=True)

    def _compare(self, pl_module: Any, data: Any) -> dict[str, float]:
        own_units = getattr(pl_module, "own_units", lambda rows: rows)
        rows: Tensor = own_units(held_out_rows(data, "test", self.num_samples))
        samples: Tensor = pl_module.sample_scaled(self.num_samples, torch.Generator().manual_seed(0)).cpu()
        energy, mmd = energy_distance(samples, rows), maximum_mean_discrepancy(samples, rows)
        figures = {
            "energy_distance": energy.value,
            "energy_distance_standard_error": energy.standard_error,
            "mmd": mmd.value,
            "mmd_standard_error": mmd.standard_error,
        }
        if len(rows) >= 4:
            figures["energy_distance_held_out"] = energy_distance(rows[::2], rows[1::2]).value
        return figures
