import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint

from lightning_lift.datamodules import GumbelDataModule, MoonsDataModule
from lightning_lift.modules import ConvexPotentialFlow, LogConcaveEBM, NormalizingFlow
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import DirectNoise, DirectSoftplus, FrozenBatch, Lift, ProjectedGradient, names
from lightning_lift.parameterizations.body import body_fingerprint
from lightning_lift.testing import ModuleContract


def make(parameterization: Any = Lift, widths: tuple[int, ...] = (8, 8)) -> LogConcaveEBM:
    return LogConcaveEBM(1, functools.partial(ICNN, widths=widths), parameterization, learning_rate=1e-2)


def data(**arguments: Any) -> GumbelDataModule:
    sizes = {"batch_size": 32, "batches_per_epoch": 5, "num_val": 100, "num_test": 100, "num_calibration": 128}
    return GumbelDataModule(**{**sizes, **arguments})


def trainer(folder: Path, **settings: Any) -> Any:
    return ModuleContract()._trainer(**{"enable_checkpointing": True, "default_root_dir": folder, **settings})


def saved(folder: Path, parameterization: Any = Lift, **settings: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    module = make(parameterization)
    run = trainer(folder, **settings)
    run.fit(module, datamodule=data())
    run.save_checkpoint(folder / "x.ckpt")
    return torch.load(folder / "x.ckpt", weights_only=True)


def test_version_and_format_are_written(tmp_path: Path) -> None:
    assert saved(tmp_path)["lightning_lift"] == {"version": "0.1.0", "format": 2}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("lightning_lift"), "no checkpoint of lightning_lift"),
        (lambda c: c["lightning_lift"].update(format=99, version="9.9"), "format 99 .*9.9"),
        (lambda c: c["state_dict"].pop("network.layers.0.bias"), r"lacks \['network.layers.0.bias'\]"),
        (lambda c: c["state_dict"].update(extra=torch.ones(1)), r"has \['extra'\]"),
        (lambda c: c["state_dict"].update({"network.layers.0.bias": torch.ones(3)}), r"shape \(3,\).*\(8,\)"),
    ],
    ids=["foreign", "format", "missing", "unknown", "shape"],
)
def test_what_does_not_fit_is_one_clear_error(tmp_path: Path, change: Any, message: str) -> None:
    checkpoint = saved(tmp_path)
    change(checkpoint)
    torch.save(checkpoint, tmp_path / "bad.ckpt")
    with pytest.raises(ValueError, match=message):
        LogConcaveEBM.load_from_checkpoint(tmp_path / "bad.ckpt", weights_only=True)


def test_what_cannot_be_resumed_is_named_with_its_file(tmp_path: Path) -> None:
    """Whichever part of Lightning meets it first."""
    good = saved(tmp_path)
    name = next(iter(good["callbacks"]))
    for damaged in (
        {"pytorch-lightning_version": None},
        {"loops": {}},
        {"loops": {**good["loops"], "fit_loop": {**good["loops"]["fit_loop"], "epoch_progress": "x"}}},
        {"optimizer_states": [{"state": {}, "param_groups": []}]},
        {"callbacks": {name: "x"}},
    ):
        torch.save(good | damaged, tmp_path / "bad.ckpt")
        with pytest.raises(ValueError, match=r"bad.ckpt cannot be restored \(.*damaged"):
            trainer(tmp_path, max_steps=9).fit(make(), datamodule=data(), ckpt_path=tmp_path / "bad.ckpt")
    weights_alone = {key: value for key, value in good.items() if key != "optimizer_states"}
    torch.save(weights_alone, tmp_path / "bad.ckpt")
    with pytest.raises(ValueError, match=r"bad.ckpt cannot be restored .*holds weights alone"):
        trainer(tmp_path, max_steps=9).fit(make(), datamodule=data(), ckpt_path=tmp_path / "bad.ckpt")


OTHERS: dict[str, tuple[Any, Any, str]] = {  # what was stored, what loads it, the difference
    "class": (DirectSoftplus, Lift, "parameterization=.*DirectSoftplus.* and this module has .*Lift"),
    "control": (Lift, FrozenBatch, "parameterization=.*Lift.* and this module has .*FrozenBatch"),
    "gain": (DirectSoftplus, functools.partial(DirectSoftplus, latent_gain=10.0), r"latent_gain=1\.0 .*10\.0"),
    "beta": (functools.partial(DirectSoftplus, beta=2.0), DirectSoftplus, r"beta=2\.0 .*1\.0"),
    "readout": (DirectSoftplus, functools.partial(DirectSoftplus, readout="square"), "readout='softplus' .*'square'"),
    "slack gain": (Lift, functools.partial(Lift, slack_gain=3.0), r"slack_gain=None .*3\.0"),
    "activation": (
        functools.partial(ICNN, widths=(8, 8)),
        functools.partial(ICNN, widths=(8, 8), activation="gaussian_softplus"),
        "network.activation='softplus' .*'gaussian_softplus'",
    ),
    "strong convexity": (
        functools.partial(ICNN, widths=(8, 8), strong_convexity=1.0),
        functools.partial(ICNN, widths=(8, 8)),
        r"network.strong_convexity=1\.0 .*learned_gain",
    ),
}


def slots(factory: Any) -> dict[str, Any]:
    """The arguments of a module with this network or parameterization."""
    if getattr(factory, "func", factory) is ICNN:
        return {"network": factory, "parameterization": DirectSoftplus}
    return {"network": functools.partial(ICNN, widths=(8, 8)), "parameterization": factory}


@pytest.fixture
def calibrated(tmp_path: Path) -> Any:
    """Writes the checkpoint of a module that has not been trained."""

    def write(factory: Any) -> Path:
        run = trainer(tmp_path, max_steps=0)
        run.fit(LogConcaveEBM(1, **slots(factory)), datamodule=data())
        run.save_checkpoint(tmp_path / "x.ckpt")
        return tmp_path / "x.ckpt"

    return write


@pytest.mark.parametrize("case", OTHERS)
def test_weights_that_would_mean_something_else_are_refused(case: str, calibrated: Any, tmp_path: Path) -> None:
    stored, other, difference = OTHERS[case]
    path = calibrated(stored)
    with pytest.raises(ValueError, match=f"x.ckpt.*another .*{difference}"):
        LogConcaveEBM.load_from_checkpoint(path, **slots(other))
    for verb in ("fit", "test"):
        with pytest.raises(ValueError, match=f"another .*{difference}"):
            getattr(trainer(tmp_path), verb)(LogConcaveEBM(1, **slots(other)), datamodule=data(), ckpt_path=path)


@pytest.mark.parametrize(
    ("stored", "same"),
    [
        (ProjectedGradient, names.pgd),
        (names.lift, functools.partial(Lift, slack_start=1.0, slack_std=1.0)),  # only starts the slack
        (functools.partial(DirectNoise, latent_noise=0.1), functools.partial(names.direct_noise, latent_noise=0.2)),
        (functools.partial(ICNN, widths=[8, 8]), functools.partial(ICNN, widths=(8, 8), weight_init="principled")),
    ],
    ids=["short name", "slack's start", "noise in training", "network's start"],
)
def test_what_only_starts_or_trains_the_weights_may_differ(stored: Any, same: Any, calibrated: Any) -> None:
    path = calibrated(stored)
    one, other = LogConcaveEBM.load_from_checkpoint(path), LogConcaveEBM.load_from_checkpoint(path, **slots(same))
    x = torch.linspace(-1.0, 1.0, 5)[:, None]
    torch.testing.assert_close(other.freeze().log_prob(x), one.freeze().log_prob(x))


def test_a_flow_of_other_splines_is_refused(tmp_path: Path) -> None:
    run = trainer(tmp_path, max_steps=0)
    run.fit(
        NormalizingFlow(2, num_layers=1, hidden_features=4),
        datamodule=MoonsDataModule(batch_size=16, num_val=16, num_test=16),
    )
    run.save_checkpoint(tmp_path / "x.ckpt")
    with pytest.raises(ValueError, match=r"tail_bound=3\.0 .*4\.0"):
        NormalizingFlow.load_from_checkpoint(tmp_path / "x.ckpt", tail_bound=4.0)


def test_every_set_of_weights_carries_the_summary_of_its_own_body(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path, callbacks=[EMAWeightAveraging(decay=0.9)], max_steps=12)
    live = make()
    fingerprints = set()
    for key in ("state_dict", "current_model_state"):
        if key in checkpoint:
            assert not live.parameterization.is_state_stale(checkpoint[key], "parameterization.")
            fingerprints.add(checkpoint[key]["parameterization._extra_state"]["fingerprint"])
    assert fingerprints


def test_step_checkpoints_under_averaging_hold_two_fresh_summaries(tmp_path: Path) -> None:
    steps = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=4, save_top_k=-1, filename="{step}")
    saved(tmp_path, callbacks=[EMAWeightAveraging(decay=0.9), steps], max_steps=12)
    checkpoint = torch.load(tmp_path / "step=8.ckpt", weights_only=True)
    states = [checkpoint[key]["parameterization._extra_state"] for key in ("state_dict", "current_model_state")]
    assert states[0]["fingerprint"] != states[1]["fingerprint"]
    assert not torch.equal(states[0]["reference_summary"], states[1]["reference_summary"])
    module = LogConcaveEBM.load_from_checkpoint(tmp_path / "step=8.ckpt", weights_only=True)
    assert not module.parameterization.is_stale
    assert body_fingerprint(module.parameterization.body) == states[0]["fingerprint"]


@pytest.mark.parametrize("averaging", [False, True], ids=["plain", "averaged"])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_step_checkpoints_of_projected_gradient_never_hold_a_negative_weight(
    tmp_path: Path, averaging: bool, accumulate: int
) -> None:
    steps = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=1, save_top_k=-1, filename="{step}")
    average: list[Any] = [EMAWeightAveraging(decay=0.9)] if averaging else []
    torch.manual_seed(0)
    module = LogConcaveEBM(1, functools.partial(ICNN, widths=(8, 8)), ProjectedGradient, learning_rate=0.3)
    run = trainer(tmp_path, callbacks=[*average, steps], accumulate_grad_batches=accumulate, max_steps=10)
    run.fit(module, datamodule=data(batches_per_epoch=50))
    files = sorted(tmp_path.glob("step=*.ckpt"))
    assert len(files) == 10
    zeros = 0
    for file in files:
        checkpoint = torch.load(file, weights_only=True)
        for key in ("state_dict", "current_model_state"):
            if key in checkpoint:
                weights = checkpoint[key]["parameterization.flat_weights"]
                assert (weights >= 0).all(), (file.name, key)
                zeros += int((weights == 0).sum())
    assert zeros > 0, "no weight was ever at the boundary: the test would pass without a projection"


def test_averaged_summary_belongs_to_the_averaged_body_in_validation(tmp_path: Path) -> None:
    stale: list[bool] = []

    class Watched(LogConcaveEBM):
        def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
            stale.append(self.parameterization.is_stale)
            super().validation_step(batch, batch_idx)

    module = Watched(1, functools.partial(ICNN, widths=(8, 8)), Lift, learning_rate=1e-2)
    run = trainer(tmp_path, callbacks=[EMAWeightAveraging(decay=0.9)], max_steps=15)
    run.fit(module, datamodule=data())
    assert stale
    assert not any(stale)
    assert not module.parameterization.is_stale, "fit ends with the averaged weights and their summary"


def test_test_in_a_new_process_needs_no_training_data(tmp_path: Path) -> None:
    class OnlyTest(GumbelDataModule):
        def train_dataloader(self) -> Any:
            raise AssertionError("training data were asked for")

        calibration_dataloader = train_dataloader

    torch.manual_seed(0)
    module = make()
    run = trainer(tmp_path, max_steps=10)
    run.fit(module, datamodule=data())
    expected = run.test(module, datamodule=data(), verbose=False)[0]
    run.save_checkpoint(tmp_path / "x.ckpt")
    again = LogConcaveEBM.load_from_checkpoint(tmp_path / "x.ckpt", weights_only=True)
    rows = OnlyTest(batch_size=32, batches_per_epoch=5, num_val=100, num_test=100, num_calibration=128)
    assert trainer(tmp_path).test(again, datamodule=rows, verbose=False)[0] == expected


def test_fit_on_bare_loaders_with_a_lift_says_what_is_missing(tmp_path: Path) -> None:
    rows = torch.randn(4, 16, 1)
    with pytest.raises(RuntimeError, match="calibration_dataloader"):
        trainer(tmp_path).fit(make(), rows, rows)


def test_fit_on_bare_loaders_works_without_a_lift(tmp_path: Path) -> None:
    rows = torch.randn(4, 16, 1)
    trainer(tmp_path).fit(make(DirectSoftplus), rows, rows)


def test_actnorms_of_version_0_1_are_converted_beside_an_average_and_in_the_optimizer(tmp_path: Path) -> None:
    """A file of that version: its log-densities there, its moments by the scales, and training goes on."""
    path = Path(__file__).parents[2] / "fixtures" / "flow_averaged.ckpt"
    old = torch.load(path, weights_only=True)
    network = functools.partial(
        ICNN,
        widths=[3],
        actnorm=True,
        bias_std=1.0,
        strong_convexity=0.02,
        divide_by_fan_in=False,
        weight_init="folded_normal",
    )
    module = ConvexPotentialFlow(1, network, DirectSoftplus, learning_rate=0.05)
    new = torch.load(path, weights_only=True)
    module.on_load_checkpoint(new)
    x = torch.tensor([[-2.0], [5.0], [20.0]])
    for key, expected in (
        ("current_model_state", [-8.460603713989258, -2.267770290374756, -6.592145919799805]),
        ("state_dict", [-8.348790168762207, -2.5297632217407227, -6.231842994689941]),
    ):
        module.load_state_dict(new[key])
        torch.testing.assert_close(module.log_prob(x).detach(), torch.tensor(expected), rtol=1e-5, atol=1e-5)
    before, after = (c["optimizer_states"][0]["state"] for c in (old, new))
    scales = [old["current_model_state"][f"network.0.{p}actnorm.log_scale"].exp() for p in ("", "network.layers.0.")]
    for index, scale in ((1, scales[0]), (4, scales[1]), (6, scales[1])):
        torch.testing.assert_close(after[index]["exp_avg"], before[index]["exp_avg"] / scale)
        torch.testing.assert_close(after[index]["exp_avg_sq"], before[index]["exp_avg_sq"] / scale**2)
    run = trainer(tmp_path, callbacks=[EMAWeightAveraging(decay=0.8)], max_steps=12)
    run.fit(module, datamodule=data(loc=5.0, scale=3.0, batches_per_epoch=10), ckpt_path=path, weights_only=True)
    assert run.global_step == 12
    assert run.validate(module, datamodule=data(loc=5.0, scale=3.0), verbose=False)[0]["val/nll"] < 3.5


def test_emitted_actnorms_of_version_0_1_are_refused() -> None:
    module = LogConcaveEBM(1, functools.partial(ICNN, widths=[4], actnorm=True), functools.partial(Lift, emit="all"))
    checkpoint = {"lightning_lift": {"version": "0.1.0", "format": 1}, "state_dict": module.state_dict()}
    with pytest.raises(ValueError, match=r"version 0\.1 and its parameterization emits"):
        module.on_load_checkpoint(checkpoint)
