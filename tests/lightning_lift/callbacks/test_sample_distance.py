from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor

from lightning_lift.callbacks import SampleDistance
from lightning_lift.datamodules import EightGaussiansDataModule, TabularDataModule
from lightning_lift.metrics import energy_distance, maximum_mean_discrepancy
from lightning_lift.modules import NormalizingFlow
from tests.lightning_lift.callbacks.runs import make_trainer, small_data, small_model

NAMES = {
    "test/energy_distance",
    "test/energy_distance_standard_error",
    "test/energy_distance_held_out",
    "test/mmd",
    "test/mmd_standard_error",
}


class Oracle(L.LightningModule):
    """Draws from the data's own source, shifted."""

    def __init__(self, data: Any, shift: float) -> None:
        super().__init__()
        self.data, self.shift = data, shift

    def sample_scaled(self, num_samples: int, generator: torch.Generator) -> Tensor:
        generator.manual_seed(generator.initial_seed() + 1000)
        return self.data.draw(num_samples, generator) + self.shift

    def test_step(self, batch: Tensor, batch_idx: int) -> None:
        pass


@pytest.mark.parametrize("shift", [0.0, 0.6])
def test_the_truth_is_within_errors_of_zero_and_a_shift_is_not(tmp_path: Path, shift: float) -> None:
    data = EightGaussiansDataModule(num_test=1500, num_val=10)
    trainer = make_trainer(tmp_path, [SampleDistance(1000)])
    figures = trainer.test(Oracle(data, shift), datamodule=data, verbose=False)[0]
    assert set(figures) == NAMES
    for name in ("energy_distance", "mmd"):
        value, error = figures[f"test/{name}"], figures[f"test/{name}_standard_error"]
        assert (abs(value) < 3.0 * error) == (shift == 0.0), name
    assert abs(figures["test/energy_distance_held_out"]) < 0.03
    samples = data.draw(1000, torch.Generator().manual_seed(1000)) + shift
    rows = data.split("test")[:1000]
    assert figures["test/energy_distance"] == pytest.approx(energy_distance(samples, rows).value, rel=1e-5, abs=1e-7)
    assert figures["test/mmd"] == pytest.approx(maximum_mean_discrepancy(samples, rows).value, rel=1e-5, abs=1e-7)


def test_energy_based_models_and_flows(tmp_path: Path) -> None:
    model, data = small_model(), small_data()
    trainer = make_trainer(tmp_path, [SampleDistance(100)], max_steps=10)
    trainer.fit(model, data)
    assert set(trainer.test(model, datamodule=data, verbose=False)[0]) >= NAMES
    table = TabularDataModule(table="load_wine", columns=[0, 1, 2], batch_size=32)
    flow = NormalizingFlow(3, "maf", num_layers=2, hidden_features=8, num_blocks=1)
    trainer = make_trainer(tmp_path, [SampleDistance()], max_steps=3)
    trainer.fit(flow, table)
    state = torch.get_rng_state()
    assert set(trainer.test(flow, datamodule=table, verbose=False)[0]) >= NAMES
    assert torch.equal(state, torch.get_rng_state())


def test_a_model_without_samples_and_a_diverged_one_are_said_once(tmp_path: Path) -> None:
    class Silent(L.LightningModule):
        def test_step(self, batch: Tensor, batch_idx: int) -> None:
            pass

    data = small_data()
    with pytest.warns(UserWarning, match="Silent has no sample"):
        assert make_trainer(tmp_path, [SampleDistance()]).test(Silent(), datamodule=data, verbose=False) == [{}]

    class Diverged(Silent):
        def sample_scaled(self, num_samples: int, generator: torch.Generator) -> Tensor:
            raise RuntimeError("it has diverged")

    with pytest.warns(UserWarning, match="not compared: it has diverged"):
        make_trainer(tmp_path, [SampleDistance()]).test(Diverged(), datamodule=data, verbose=False)


def test_arguments() -> None:
    with pytest.raises(ValueError, match="num_samples=3"):
        SampleDistance(3)
    assert SampleDistance(10).state_key != SampleDistance(11).state_key
