"""One run: its record, its checkpoints, and that watching it changes nothing."""

import copy
import dataclasses
import errno
import functools
import json
import math
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor
from torch.utils.data import DataLoader

from lightning_lift.cli import LiftCLI
from lightning_lift.compare import RecordStore, RunRecord, RunSpec, make, parse_arm, read_config, resolve
from lightning_lift.compare import run as run_module
from lightning_lift.compare.records import Purpose
from lightning_lift.compare.report.sections import DIAGNOSTICS
from lightning_lift.compare.run import _check_tested, ending, run
from lightning_lift.modules import ConvexModule, LogConcaveEBM
from lightning_lift.modules.divergence import DivergenceError, largest_weight
from lightning_lift.networks import ICNN, ConvexNetwork
from lightning_lift.parameterizations import Lift, Parameterization
from lightning_lift.potential import Potential

CONFIGS = Path(__file__).parents[3] / "configs"
SIZES = ("--data.num_val=400", "--data.num_test=400", "--data.num_calibration=512")
CPU = "--trainer.accelerator=cpu"
CHAINS = (
    "--model.partition.num_chains=16",
    "--model.evaluation.num_chains=16",
    "--model.evaluation.num_temperatures=5",
)


@functools.cache
def configuration(name: str, *overrides: str) -> dict[str, Any]:
    sizes = SIZES if name == "ebm_gumbel.yaml" else ()
    return read_config(CONFIGS / name, [CPU, *sizes, *overrides])


def spec(
    arm: str,
    *overrides: str,
    config: str = "ebm_gumbel.yaml",
    rate: float | None = None,
    seed: int = 0,
    steps: int = 40,
    evaluate_every: int | None = 10,
    purpose: Purpose = "final",
) -> RunSpec:
    parsed = parse_arm(arm)
    resolved = resolve(configuration(config, *overrides), parsed, rate, seed, steps, evaluate_every)
    return RunSpec(parsed.label, purpose, rate, seed, steps, resolved)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, RunRecord]]:
    folder = tmp_path_factory.mktemp("compare")
    return folder, {arm: run(spec(arm), folder, checkpoint_every=20) for arm in ("pgd", "direct", "lift")}


def fails_at_step_5(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    plain = LogConcaveEBM.loss

    def loss(module: LogConcaveEBM, potential: Any, batch: Tensor) -> Tensor:
        if module.global_step == 5:
            raise error
        return plain(module, potential, batch)

    monkeypatch.setattr(LogConcaveEBM, "loss", loss)


# -- records --------------------------------------------------------------------------------------------------------


def test_every_arm_gives_a_whole_record(three: tuple[Path, dict[str, RunRecord]]) -> None:
    for arm, record in three[1].items():
        assert (record.outcome, record.error, record.arm, record.engine) == ("finished", None, arm, "lightning")
        assert record.curves["step"] == [10.0, 20.0, 30.0, 40.0]
        weights = "zeros/fraction" if arm == "pgd" else "shoulder/occupancy"
        wanted = {"seconds", "train/loss", "val/nll", "val/total_variation", "latent/step", weights}
        assert wanted <= record.curves.keys()
        for name in wanted:
            assert len(record.curves[name]) == 4 and all(map(math.isfinite, record.curves[name])), name
        assert all(step > 0.0 for step in record.curves["latent/step"])
        own = {name for name in record.curves if name.partition("/")[0] not in ("step", "seconds", "train", "val")}
        assert own <= DIAGNOSTICS.keys()  # or a report would leave them out
        assert record.curves["seconds"] == sorted(record.curves["seconds"])
        assert record.timings["train_seconds"] <= record.timings["fit_seconds"]
        assert record.timings["seconds_per_step"] == pytest.approx(record.timings["train_seconds"] / 40)
        assert {"torch", "lightning", "lightning_lift"} <= record.versions.keys()
        assert {"best", "last"} == record.metrics.keys()
        assert record.metrics["best"]["val/nll"] == min(record.curves["val/nll"])
        assert record.metrics["last"]["val/nll"] == record.curves["val/nll"][-1]
        assert record.metrics["best"]["test/nll"] > 0.0
    counts = [record.num_parameters for record in three[1].values()]
    assert counts[0] == counts[1] < counts[2]


def test_arms_of_a_seed_share_start_and_data_and_other_seeds_do_not(
    three: tuple[Path, dict[str, RunRecord]], tmp_path: Path
) -> None:
    records = list(three[1].values())
    assert len({record.start_hash for record in records} | {record.data_hash for record in records}) == 2
    assert records[0].start_hash and records[0].data_hash
    other = run(spec("pgd", seed=1, steps=3, evaluate_every=3), tmp_path)
    assert other.start_hash != records[0].start_hash and other.data_hash != records[0].data_hash
    gained = run(spec("direct:latent_gain=10", steps=3, evaluate_every=3), tmp_path)
    assert (gained.start_hash, gained.data_hash) == (records[0].start_hash, records[0].data_hash)
    elsewhere = run(spec("lift:slack_start=-2.0", steps=3, evaluate_every=3), tmp_path)
    assert elsewhere.start_hash != records[0].start_hash and elsewhere.data_hash == records[0].data_hash


def test_a_record_is_stored_and_read_back(three: tuple[Path, dict[str, RunRecord]], tmp_path: Path) -> None:
    store, record = RecordStore(tmp_path), three[1]["lift"]
    store.write(record)
    assert store.read(record.key).reproducible() == record.reproducible()
    assert store.get(spec("lift")) is not None


def test_two_runs_of_one_spec_agree(three: tuple[Path, dict[str, RunRecord]], tmp_path: Path) -> None:
    again = run(spec("lift"), tmp_path, checkpoint_every=20)
    assert again.reproducible() == three[1]["lift"].reproducible()


@pytest.mark.parametrize(
    "arm", ["lift", *(pytest.param(arm, marks=pytest.mark.slow) for arm in ("independent_batch", "direct_noise"))]
)
def test_watching_changes_nothing(arm: str, tmp_path: Path) -> None:
    """Bit for bit the weights of the same fit without any callback, validation or checkpoint."""
    record = run(spec(arm, evaluate_every=4, steps=10), tmp_path, checkpoint_every=3)
    module, data, settings = make(spec(arm, evaluate_every=4, steps=10))
    settings |= {"limit_val_batches": 0, "default_root_dir": tmp_path, "callbacks": None}
    L.Trainer(**settings).fit(module, datamodule=data)
    saved = torch.load(tmp_path / record.checkpoints["last"], weights_only=True)["state_dict"]
    for name, parameter in module.named_parameters():
        assert torch.equal(parameter, saved[name]), name


# -- checkpoints ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arm", [pytest.param("pgd", marks=pytest.mark.slow), "lift"])
def test_the_command_line_finds_the_same_metrics(
    three: tuple[Path, dict[str, RunRecord]], arm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, records = three
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["lightning-lift"])
    quiet = ["--trainer.logger=false", "--trainer.callbacks=null", "--trainer.enable_progress_bar=false"]
    checkpoint = str(folder / records[arm].checkpoints["best"])
    arguments = ["test", "--config", str(CONFIGS / "ebm_gumbel.yaml"), "--ckpt_path", checkpoint, *SIZES, *quiet, CPU]
    cli = LiftCLI([*arguments, "--data.data_seed=0", "--trainer.enable_model_summary=false"])
    found = {name: float(value) for name, value in cli.trainer.callback_metrics.items()}
    recorded = {name: value for name, value in records[arm].metrics["best"].items() if name.startswith("test/")}
    assert found == recorded


def test_checkpoints_are_named_in_the_record_and_nothing_else_is_left(
    three: tuple[Path, dict[str, RunRecord]],
) -> None:
    folder, records = three
    names = {"best", "last", "step000000", "step000020", "step000040"}
    for record in records.values():
        assert record.checkpoints == {name: f"checkpoints/{record.key}/{name}.ckpt" for name in names}
        assert {path.stem for path in (folder / "checkpoints" / record.key).iterdir()} == names
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {record.key for record in records.values()}
    first = torch.load(folder / records["pgd"].checkpoints["step000000"], weights_only=True)
    module = make(spec("pgd"))[0]
    for name, parameter in module.named_parameters():
        assert torch.equal(parameter, first["state_dict"][name])
    assert "optimizer_states" not in first
    assert "optimizer_states" in torch.load(folder / records["pgd"].checkpoints["last"], weights_only=True)


@pytest.mark.parametrize("purpose", ["tune", "timing"])
def test_runs_that_only_measure_keep_no_checkpoints(purpose: Purpose, tmp_path: Path) -> None:
    record = run(spec("pgd", steps=4, evaluate_every=2, purpose=purpose), tmp_path)
    assert record.outcome == "finished" and record.checkpoints == {} and "test/nll" in record.metrics["best"]
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_what_a_killed_process_left_is_replaced(tmp_path: Path) -> None:
    made = spec("pgd", steps=4, evaluate_every=2)
    for name in (made.key, f".{made.key}.123"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
        (tmp_path / "checkpoints" / name / "half.ckpt").write_text("x")
    record = run(made, tmp_path)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [made.key]
    assert {path.stem for path in (tmp_path / "checkpoints" / made.key).iterdir()} == record.checkpoints.keys()


# -- what goes wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arm", ["lift", *(pytest.param(arm, marks=pytest.mark.slow) for arm in ("direct", "pgd"))])
def test_a_rate_far_too_large_is_a_divergence(arm: str, tmp_path: Path) -> None:
    record = run(spec(arm, rate=1e6, evaluate_every=1), tmp_path)
    assert record.outcome == "diverged" and record.error and record.start_hash
    assert record.metrics == {} and record.checkpoints == {}
    assert len({len(curve) for curve in record.curves.values()}) <= 1
    assert list((tmp_path / "checkpoints").iterdir()) == []
    json.dumps(dataclasses.asdict(record))


def test_a_loss_that_is_not_finite_ends_the_curves_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = LogConcaveEBM.loss
    monkeypatch.setattr(
        LogConcaveEBM, "loss", lambda self, p, x: plain(self, p, x) * (math.nan if self.global_step == 7 else 1.0)
    )
    record = run(spec("pgd", evaluate_every=3), tmp_path)
    assert record.outcome == "diverged" and record.error == "the training loss is nan at step 8"
    assert record.curves["step"] == [3.0, 6.0, 8.0] and math.isnan(record.curves["train/loss"][-1])
    assert all(map(math.isfinite, record.curves["val/nll"][:2])) and math.isnan(record.curves["val/nll"][2])


def test_an_error_is_recorded_and_not_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails_at_step_5(monkeypatch, KeyError("gone"))
    record = run(spec("pgd", evaluate_every=2), tmp_path)
    assert (record.outcome, record.error) == ("failed", "KeyError: 'gone'")
    assert record.curves["step"] == [2.0, 4.0] and record.metrics == {}


def test_a_fault_of_the_machine_is_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails_at_step_5(monkeypatch, OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(OSError, match="No space left"):
        run(spec("pgd", evaluate_every=2), tmp_path)
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_settings_that_cannot_be_made_are_a_failure(tmp_path: Path) -> None:
    made = copy.deepcopy(spec("pgd"))
    made.config["data"]["init_args"]["batch_size"] = -3
    record = run(made, tmp_path)
    assert record.outcome == "failed" and "batch_size" in str(record.error)


def test_an_interrupt_passes_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails_at_step_5(monkeypatch, KeyboardInterrupt())
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run(spec("pgd", evaluate_every=2), tmp_path)
    assert signal.getsignal(signal.SIGINT) is handler
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_a_run_says_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(spec("pgd", steps=4, evaluate_every=2), tmp_path / "out")
    assert capfd.readouterr() == ("", "")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


# -- other configurations -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "overrides"),
    [
        ("flow_tabular.yaml", ["--model.network.widths=[6]", "--model.num_blocks=1"]),
        pytest.param("ebm_gaussian_8d.yaml", [*SIZES, *CHAINS, "--model.network.widths=[6]"], marks=pytest.mark.slow),
    ],
)
def test_other_tasks_run_by_the_same_code(config: str, overrides: Sequence[str], tmp_path: Path) -> None:
    records = [
        run(spec(arm, *overrides, "--data.batch_size=32", config=config, steps=4, evaluate_every=2), tmp_path)
        for arm in ("pgd", "lift:body_widths=[4,4]")
    ]
    for record in records:
        assert record.outcome == "finished", record.error
        assert record.curves["step"] == [2.0, 4.0] and math.isfinite(record.metrics["last"]["test/nll"])
    assert records[0].start_hash == records[1].start_hash and records[0].data_hash == records[1].data_hash


def test_averaged_weights_are_what_is_tested(tmp_path: Path) -> None:
    averaging = "--trainer.callbacks=lightning.pytorch.callbacks.EMAWeightAveraging"
    record = run(spec("lift", averaging, steps=6, evaluate_every=3), tmp_path)
    assert record.outcome == "finished", record.error
    saved = torch.load(tmp_path / record.checkpoints["last"], weights_only=True)
    assert "current_model_state" in saved
    plain = run(spec("lift", steps=6, evaluate_every=3), tmp_path / "plain")
    assert plain.metrics["last"]["test/nll"] != record.metrics["last"]["test/nll"]


def test_accumulated_gradients_count_as_one_step(tmp_path: Path) -> None:
    record = run(spec("direct", "--trainer.accumulate_grad_batches=3", steps=4, evaluate_every=2), tmp_path)
    assert record.curves["step"] == [2.0, 4.0] and all(map(math.isfinite, record.curves["latent/step"]))


def test_versions_are_plain_text() -> None:
    assert all(isinstance(version, str) for version in run_module.versions().values())


class Transport(ConvexModule):
    """A user's task: its own constructor, its own loss, and nothing logged but that.

    Args:
        dim: of the data.
        network: factory of the network.
        parameterization: factory of the parameterization.
        optimizer: factory of the optimizer.
    """

    def __init__(
        self,
        dim: int,
        network: Callable[[int], ConvexNetwork] = ICNN,
        parameterization: Callable[[], Parameterization] = Lift,
        optimizer: OptimizerCallable = torch.optim.Adam,
    ) -> None:
        super().__init__(dim, network, parameterization, optimizer)

    def loss(self, potential: Potential, batch: Tensor) -> Tensor:
        """Mean squared distance of the gradient map from 2x."""
        return (potential.gradient(batch) - 2.0 * batch).square().mean()


class Rows(L.LightningDataModule):
    """A user's data: shuffled by torch's own loader, and without a seed of its own."""

    dim = 2

    def setup(self, stage: str) -> None:
        """Makes the rows."""
        self.rows = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))

    def train_dataloader(self) -> DataLoader[Tensor]:
        """Shuffled."""
        return DataLoader(self.rows, batch_size=16, shuffle=True)

    def val_dataloader(self) -> DataLoader[Tensor]:
        """In order."""
        return DataLoader(self.rows, batch_size=64)

    test_dataloader = val_dataloader

    def calibration_dataloader(self) -> DataLoader[Tensor]:
        """In order."""
        return DataLoader(self.rows, batch_size=64)


def test_a_users_task_and_data_run_by_the_same_code(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        f"model:\n  class_path: {__name__}.Transport\n"
        "  init_args: {network: {class_path: ICNN, init_args: {widths: [4]}}}\n"
        f"data: {__name__}.Rows\ntrainer: {{max_epochs: 3, accelerator: cpu}}\n"
    )
    records = []
    for arm in ("pgd", "lift"):
        config = resolve(read_config(path), parse_arm(arm), 1e-2, 3, 6)
        assert config["model"]["init_args"]["optimizer"]["init_args"]["lr"] == 1e-2
        records.append(run(RunSpec(arm, "final", 1e-2, 3, 6, config), tmp_path))
    for record in records:
        assert record.outcome == "finished", record.error
        assert record.metrics["best"]["val/loss"] == min(record.curves["val/loss"])
        assert math.isfinite(record.metrics["best"]["test/loss"])
    assert records[0].start_hash == records[1].start_hash
    again = run(RunSpec("pgd", "final", 1e-2, 3, 6, records[0].config), tmp_path / "again")
    assert again.reproducible() == records[0].reproducible()


# -- outcomes ----------------------------------------------------------------------------------------------------------


class Two(L.LightningModule):
    def __init__(self, size: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([1.0, -size]))


@pytest.mark.parametrize(
    ("error", "size", "outcome", "text"),
    [
        (DivergenceError("val/nll is nan at step 3"), 2.0, "diverged", "val/nll is nan at step 3"),
        (ZeroDivisionError("no"), 2.0, "diverged", "ZeroDivisionError: no"),
        (torch.linalg.LinAlgError("no"), 2.0, "diverged", "_LinAlgError: no"),
        (RuntimeError("no"), 1999.0, "failed", "RuntimeError: no"),
        (RuntimeError("no"), 2001.0, "diverged", "RuntimeError: no"),
        (RuntimeError("no"), float("nan"), "diverged", "RuntimeError: no"),
    ],
)
def test_an_error_is_an_outcome(error: Exception, size: float, outcome: str, text: str) -> None:
    assert largest_weight(Two(2.0)) == 2.0
    assert ending(error, Two(size), 2.0) == (outcome, text)


def test_before_training_nothing_has_diverged() -> None:
    assert ending(ZeroDivisionError("no"), Two(1.0), None)[0] == "failed"
    assert ending(ValueError("no"), None, None) == ("failed", "ValueError: no")


def test_a_state_without_a_finite_test_metric_has_diverged() -> None:
    _check_tested({"best": {"val/nll": 1.0, "test/nll": 1.0}, "last": {}})
    with pytest.raises(DivergenceError, match="test/nll of the last state is inf"):
        _check_tested({"best": {"val/nll": 1.0, "test/nll": 1.0}, "last": {"val/nll": 1.0, "test/nll": float("inf")}})
    with pytest.raises(DivergenceError, match="test/loss of the best state is nan"):
        _check_tested({"best": {"val/loss": 1.0, "test/loss": float("nan")}})
