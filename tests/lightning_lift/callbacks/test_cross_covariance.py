import csv
import math
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import lightning as L
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from lightning_lift.callbacks import CrossCovariance
from lightning_lift.diagnostics import probe_cross_covariance
from lightning_lift.modules import LogConcaveEBM
from lightning_lift.parameterizations import Lift
from tests.lightning_lift.callbacks.runs import PARAMETERIZATIONS, events, make_trainer, small_data, small_model


class WithoutSlack(nn.Module):
    """A body without slack: the latent still moves, the slack reading is undefined."""

    def __init__(self, model: LogConcaveEBM) -> None:
        super().__init__()
        self.model = model
        inner = model.parameterization
        self.parameterization = SimpleNamespace(latent=inner.latent, parameters=inner.parameters, slack=None)
        self.batch_loss = model.batch_loss


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "logs" / "a" / "cross_covariance.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_lift_in_mid_training_reads_a_cross_covariance(tmp_path: Path) -> None:
    model, data = small_model(), small_data()
    callback = CrossCovariance(20, num_batches=32)
    make_trainer(tmp_path, [callback], max_steps=40, limit_val_batches=0).fit(model, data)
    rows = table(tmp_path)
    assert [(row["step"], row["reading"]) for row in rows] == [
        ("20", "latent_gradient"),
        ("20", "slack"),
        ("40", "latent_gradient"),
        ("40", "slack"),
    ]
    for row in rows:
        assert row["status"] == "ok"
        assert float(row["p_value"]) < 0.05
        assert 0.0 <= float(row["asymmetry"]) <= 2.0
    # The last look was at the final weights: the same numbers by hand, from the same probe batches.
    reading = probe_cross_covariance(model, data.probe_batches(32, 40)).latent_gradient
    assert float(rows[2]["frobenius"]) == pytest.approx(reading.frobenius, rel=1e-5)
    assert float(rows[2]["objective_trace"]) == pytest.approx(reading.objective_trace, rel=1e-3)
    log = events(tmp_path)
    for reading_name in ("latent_gradient", "slack"):
        scalars = log.Scalars(f"cross_covariance/{reading_name}/frobenius")
        assert [e.step for e in scalars] == [20, 40]
        assert scalars[-1].value == pytest.approx(float(rows[2]["frobenius"]), rel=1e-5)


@pytest.mark.parametrize("name", ["direct", "pgd"])
def test_direct_and_projected_are_measured_at_roundoff_zero(name: str, tmp_path: Path) -> None:
    callback = CrossCovariance(20, num_batches=16)
    make_trainer(tmp_path, [callback], max_steps=20).fit(small_model(PARAMETERIZATIONS[name]), small_data())
    measured, slack = table(tmp_path)
    assert measured["status"] == "round-off zero"
    scale = float(measured["latent_norm"]) * float(measured["gradient_norm"])
    assert scale > 0.0
    assert float(measured["frobenius"]) <= 1e-6 * scale
    assert slack["status"] == "no slack"
    assert slack["frobenius"] == "", "an undefined reading is not zero"
    tags = events(tmp_path).Tags()["scalars"]
    assert "cross_covariance/latent_gradient/trace" in tags
    assert not [tag for tag in tags if tag.startswith("cross_covariance/slack")]


@pytest.mark.parametrize("emit", ["constrained", "all"])
def test_real_lift_on_a_frozen_batch_and_without_slack(emit: str) -> None:
    model, data = small_model(partial(Lift, body_widths=(16, 16), slack_start=-2.0, emit=emit)), small_data()
    (batch,) = data.probe_batches(1)
    frozen = probe_cross_covariance(model, [batch] * 16)
    assert frozen.latent_gradient.is_roundoff
    moving = probe_cross_covariance(model, data.probe_batches(32))
    assert moving.slack is not None
    assert not moving.latent_gradient.is_roundoff
    # The slack's gradient is the latent's: d latent / d slack is the identity.
    assert moving.slack.frobenius == pytest.approx(moving.latent_gradient.frobenius, rel=1e-4)
    alone = probe_cross_covariance(WithoutSlack(model), data.probe_batches(32))
    assert alone.slack is None
    assert alone.latent_gradient.frobenius == pytest.approx(moving.latent_gradient.frobenius, rel=1e-4)


def test_the_file_continues_a_resumed_run_and_replaces_an_older_one(tmp_path: Path) -> None:
    model = small_model()
    for max_steps, ckpt, expected in ((10, None, [5, 10]), (20, "half.ckpt", [5, 10, 15, 20]), (5, None, [5])):
        trainer = make_trainer(tmp_path, [CrossCovariance(5, num_batches=3, num_permutations=2)], max_steps=max_steps)
        trainer.fit(model, small_data(), ckpt_path=ckpt and str(tmp_path / ckpt), weights_only=True)
        assert [int(row["step"]) for row in table(tmp_path) if row["reading"] == "slack"] == expected
        trainer.save_checkpoint(tmp_path / "half.ckpt")


def test_undefined_numbers_are_not_logged(tmp_path: Path) -> None:
    model = small_model(PARAMETERIZATIONS["pgd"], lr=0.0)
    with torch.no_grad():
        model.parameterization.flat_weights.zero_()  # kappa is 0, so mu_eff is undefined
    callback = CrossCovariance(1, num_batches=3, num_permutations=2)
    make_trainer(tmp_path, [callback], max_steps=1).fit(model, small_data())
    assert float(table(tmp_path)[0]["kappa"]) == 0.0
    assert math.isnan(float(table(tmp_path)[0]["mu_eff"]))
    tags = events(tmp_path).Tags()["scalars"]
    assert "cross_covariance/latent_gradient/mu_eff" not in tags
    assert "cross_covariance/latent_gradient/kappa" in tags


def test_no_probe_batches_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    class Bare(L.LightningDataModule):
        def train_dataloader(self) -> DataLoader:
            return DataLoader(torch.zeros(8, 1), batch_size=4)

    model = small_model()
    with pytest.raises(ValueError, match="has Bare; derive the data module from"):
        make_trainer(tmp_path, [CrossCovariance()]).fit(model, Bare())
    with pytest.raises(ValueError, match="the trainer has none"):
        make_trainer(tmp_path, [CrossCovariance()]).fit(model, DataLoader(torch.zeros(8, 1), batch_size=4))


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [({"num_batches": 2}, "num_batches=2"), ({"num_permutations": 0}, "num_permutations=0"), ({"seed": -1}, "seed=-1")],
)
def test_bad_arguments_are_refused(kwargs: dict[str, int], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        CrossCovariance(**kwargs)
