"""All seeds at once against the same runs one by one, by Lightning."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_lift.compare.arms import parse_arm
from lightning_lift.compare.build import read_config, resolve
from lightning_lift.compare.record import RunRecord, RunSpec
from lightning_lift.compare.run import run
from lightning_lift.compare.vectorized import NotVectorizable, run_vectorized
from lightning_lift.datamodules import GumbelDataModule
from lightning_lift.modules import LogConcaveEBM, density

STEPS = 60

ENERGY = """
model:
  class_path: LogConcaveEBM
  init_args:
    network: {class_path: ICNN, init_args: {widths: [8, 8]}}
    parameterization: {class_path: Lift, init_args: {body_widths: [8, 6], emission_width: 5}}
    optimizer: {class_path: torch.optim.Adam, init_args: {lr: 1.0e-2}}
    lr_scheduler: {class_path: torch.optim.lr_scheduler.CosineAnnealingLR, init_args: {T_max: 60}}
    partition: {class_path: Quadrature, init_args: {num_points: 101, evaluation_points: 201}}
data:
  class_path: GumbelDataModule
  init_args: {batch_size: 32, batches_per_epoch: 25, num_val: 200, num_test: 200, num_calibration: 200}
trainer: {max_steps: 60, gradient_clip_val: 1.0, accelerator: cpu}
"""

FLOW = """
model:
  class_path: ConvexPotentialFlow
  init_args:
    network: {class_path: ICNN, init_args: {widths: [8, 8], actnorm: true}}
    num_blocks: 2
    inverse_rows: 20
    optimizer: {class_path: torch.optim.Adam, init_args: {lr: 5.0e-3}}
data:
  class_path: EightGaussiansDataModule
  init_args: {batch_size: 32, batches_per_epoch: 25, num_val: 100, num_test: 100, num_calibration: 100}
trainer: {max_steps: 60, gradient_clip_val: 10.0, accelerator: cpu}
"""


@pytest.fixture(autouse=True)
def _coarse_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(density, "_TRUTH_POINTS", {"val": {1: 500, 2: 20}, "test": {1: 500, 2: 20}})


def specs(folder: Path, text: str, arm: str, *overrides: str, seeds: int = 3, steps: int = STEPS) -> list[RunSpec]:
    path = folder / "config.yaml"
    path.write_text(text)
    config, parsed = read_config(path, overrides), parse_arm(arm)
    return [
        RunSpec(arm, "final", None, seed, steps, resolve(config, parsed, None, seed, steps, look_every=25))
        for seed in range(seeds)
    ]


def furthest(ours: RunRecord, theirs: RunRecord) -> float:
    """The largest difference between two records, of numbers of order one; times apart."""
    assert (ours.outcome, ours.error) == (theirs.outcome, theirs.error)
    assert (ours.key, ours.fingerprint, ours.num_parameters) == (theirs.key, theirs.fingerprint, theirs.num_parameters)
    assert (ours.start_hash, ours.data_hash) == (theirs.start_hash, theirs.data_hash)
    assert ours.checkpoints.keys() == theirs.checkpoints.keys()
    assert list(ours.curves) == list(theirs.curves)
    assert ours.metrics.keys() == theirs.metrics.keys()
    gaps = [0.0]
    for name in ours.curves.keys() - {"seconds"}:
        gaps += [gap(a, b) for a, b in zip(ours.curves[name], theirs.curves[name], strict=True)]
    for state, metrics in ours.metrics.items():
        assert metrics.keys() == theirs.metrics[state].keys()
        gaps += [gap(value, theirs.metrics[state][name]) for name, value in metrics.items()]
    return max(gaps)


def gap(a: float, b: float) -> float:
    return 0.0 if a == b or (math.isnan(a) and math.isnan(b)) else abs(a - b) / max(1.0, abs(b))


def both(
    made: list[RunSpec], folder: Path, checkpoint_every: int | None = None, chunk: int | None = None
) -> tuple[list[RunRecord], list[RunRecord]]:
    ours = run_vectorized(made, folder / "vectorized", checkpoint_every, chunk=chunk)
    return ours, [run(spec, folder / "separate", checkpoint_every) for spec in made]


@pytest.mark.parametrize(
    "arm",
    [
        "lift",
        "independent_batch",
        *(pytest.param(arm, marks=pytest.mark.slow) for arm in ("pgd", "direct:latent_gain=10", "admm")),
        pytest.param("lift:emission_width=null:emit=all", marks=pytest.mark.slow),
    ],
)
def test_equal_to_separate_runs(arm: str, tmp_path: Path) -> None:
    made = specs(tmp_path, ENERGY, arm, seeds=3 if arm == "lift" else 2)
    ours, theirs = both(made, tmp_path, chunk=2, checkpoint_every=30)
    assert [record.seed for record in ours] == [spec.seed for spec in made]
    for one, other in zip(ours, theirs, strict=True):
        assert one.engine == "vectorized"
        assert one.outcome == "finished"
        assert furthest(one, other) <= 1e-5
        check_checkpoints(one, other, tmp_path)
    assert ours[0].metrics["last"]["val/nll"] != ours[1].metrics["last"]["val/nll"]
    assert not list((tmp_path / "vectorized" / "checkpoints").glob(".*"))


def check_checkpoints(one: RunRecord, other: RunRecord, folder: Path) -> None:
    """Those of separate runs."""
    names = {"best", "last", "step000000", "step000030", "step000060"}
    assert set(one.checkpoints) == set(other.checkpoints) == names
    for name, path in one.checkpoints.items():
        own = torch.load(folder / "vectorized" / path, weights_only=True)
        separate = torch.load(folder / "separate" / other.checkpoints[name], weights_only=True)
        assert own["global_step"] == separate["global_step"]
        assert own["state_dict"].keys() == separate["state_dict"].keys()
        for key, tensor in own["state_dict"].items():
            if isinstance(tensor, torch.Tensor):
                torch.testing.assert_close(tensor, separate["state_dict"][key], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("arm", [pytest.param("pgd", marks=pytest.mark.slow), "lift:body_widths=[8,6]"])
def test_flows_equal_separate_runs(arm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64: 60 steps of Adam carry a flow's float32 round-off on to some 3e-5."""
    monkeypatch.setattr(density, "_TRUTH_POINTS", {"val": {}, "test": {}})  # whose grid is float32
    made = specs(tmp_path, FLOW, arm, "--trainer.precision=64-true", seeds=2)
    for one, other in zip(*both(made, tmp_path), strict=True):
        assert one.outcome == "finished"
        for record in (one, other):  # what is no likelihood (a condition number, an inverse's error) rounds off more
            for metrics in (record.curves, *record.metrics.values()):
                for name in [name for name in metrics if "nll" not in name and "loss" not in name and name != "step"]:
                    del metrics[name]
        assert furthest(one, other) <= 1e-5


def poison(monkeypatch: pytest.MonkeyPatch, seeds: tuple[int, ...], step: int) -> None:
    """Makes the batch of a step infinite for some seeds."""
    draw = GumbelDataModule.draw

    def poisoned(self: GumbelDataModule, num_rows: int, generator: torch.Generator) -> torch.Tensor:
        rows = draw(self, num_rows, generator)
        self.drawn = getattr(self, "drawn", 0) + 1
        # The splits are drawn first: three of them.
        return rows * math.inf if self.data_seed in seeds and self.drawn == 3 + step else rows

    monkeypatch.setattr(GumbelDataModule, "draw", poisoned)


def test_one_seed_diverges_and_the_others_do_not_notice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch, (1,), step=31)
    ours, theirs = both(specs(tmp_path, ENERGY, "lift"), tmp_path)
    assert [record.outcome for record in ours] == ["finished", "diverged", "finished"]
    assert ours[1].curves["step"] == [25.0, 31.0]
    assert ours[1].metrics == {}
    for one, other in zip(ours, theirs, strict=True):
        assert furthest(one, other) <= 1e-5


def test_a_density_without_mass_fails_alone(tmp_path: Path) -> None:
    """No strong convexity and a large rate: some energies become flat."""
    made = specs(tmp_path, ENERGY, "pgd", "--model.network.init_args.strong_convexity=0", "--model.learning_rate=3")
    ours, theirs = both(made, tmp_path)
    assert [record.outcome for record in ours] == [record.outcome for record in theirs]
    assert {record.outcome for record in ours} != {"finished"}


def test_an_error_in_one_seed_s_own_part_ends_that_seed_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken_for(seed: int, step: Any) -> Any:
        def breaks(self: LogConcaveEBM, *args: Any) -> Any:
            if self.trainer.datamodule.data_seed == seed:  # type: ignore[attr-defined]
                raise OSError("the disk is gone")
            return step(self, *args)

        return breaks

    monkeypatch.setattr(LogConcaveEBM, "validation_step", broken_for(1, LogConcaveEBM.validation_step))
    monkeypatch.setattr(LogConcaveEBM, "test_step", broken_for(2, LogConcaveEBM.test_step))
    ours, theirs = both(specs(tmp_path, ENERGY, "pgd", steps=25), tmp_path)
    assert [record.outcome for record in ours] == ["finished", "failed", "failed"]
    for one, other in zip(ours, theirs, strict=True):
        assert furthest(one, other) <= 1e-5


def test_an_early_end_of_all_seeds_leaves_no_hash_of_fewer_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch, (0, 1), step=2)
    ours, theirs = both(specs(tmp_path, ENERGY, "pgd", seeds=2, steps=10), tmp_path)
    assert {record.outcome for record in [*ours, *theirs]} == {"diverged"}
    assert {record.data_hash for record in [*ours, *theirs]} == {""}


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["--trainer.accumulate_grad_batches=2"], "accumulates"),
        (["--trainer.precision=bf16-mixed"], "precision"),
        (["--model.optimizer=torch.optim.LBFGS"], "each number by itself"),
        (["--model.partition=Langevin"], "Langevin"),
        (["--trainer.callbacks=lightning.pytorch.callbacks.EMAWeightAveraging"], "callbacks"),
    ],
)
def test_what_cannot_be_trained_at_once_says_why(overrides: list[str], reason: str, tmp_path: Path) -> None:
    with pytest.raises(NotVectorizable, match=reason):
        run_vectorized(specs(tmp_path, ENERGY, "pgd", *overrides, steps=4, seeds=1), tmp_path)


def test_specs_of_two_arms_are_refused(tmp_path: Path) -> None:
    made = specs(tmp_path, ENERGY, "pgd", seeds=1) + specs(tmp_path, ENERGY, "direct", seeds=1)
    with pytest.raises(ValueError, match="only seeds of one arm"):
        run_vectorized(made, tmp_path)
