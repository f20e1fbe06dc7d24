"""From a configuration to runs: what each arm gets, what carries over, and that all arms of a seed start alike."""

import copy
import json
from pathlib import Path
from typing import Any, NoReturn

import lightning as L
import pytest
import torch
import yaml

from lightning_lift.compare.arms import Arm, imported, parse_arm
from lightning_lift.compare.build import count_parameters, make, make_from
from lightning_lift.compare.records import RunSpec
from lightning_lift.compare.specification import evaluation_interval, resolve, scaled_scheduler
from lightning_lift.modules import LogConcaveEBM
from lightning_lift.parameterizations import Lift
from lightning_lift.settings import read_config

CONFIGS = Path(__file__).parents[3] / "configs"
SMALL = ("--model.network.widths=[6,6]", "--data.batch_size=16", "--data.num_val=50", "--data.num_test=50")


class NarrowLift(Lift):
    """A lift with other defaults and fewer arguments.

    Args:
        body_widths: of the body.
        standardize_summary: standardise the code.
    """

    def __init__(self, body_widths: tuple[int, ...] = (4, 4), standardize_summary: bool = False) -> None:
        super().__init__(body_widths=body_widths, standardize_summary=standardize_summary)


@pytest.fixture(scope="module")
def gumbel() -> dict[str, Any]:
    return read_config(CONFIGS / "ebm_gumbel.yaml", SMALL)


def parameterization(config: dict[str, Any], arm: str | Arm, **settings: Any) -> dict[str, Any]:
    made = parse_arm(arm) if isinstance(arm, str) else arm
    resolved = resolve(config, made, None, 0, 10, **settings)
    init_args: dict[str, Any] = resolved["model"]["init_args"]["parameterization"]["init_args"]
    return init_args


def written(folder: Path, **changes: Any) -> Path:
    """The Gumbel configuration with other top-level entries."""
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load((CONFIGS / "ebm_gumbel.yaml").read_text()), **changes}))
    return path


# -- reading --------------------------------------------------------------------------------------------------------


def test_a_configuration_is_read_with_overrides_and_defaults(gumbel: dict[str, Any]) -> None:
    assert gumbel.keys() == {"seed_everything", "model", "data", "trainer", "compare"} and gumbel["compare"] == {}
    assert gumbel["data"]["init_args"]["batch_size"] == 16
    assert imported(gumbel["model"]["class_path"]) is LogConcaveEBM
    assert gumbel["model"]["init_args"]["network"]["init_args"]["activation"] == "softplus"
    assert "dim" not in gumbel["model"]["init_args"]  # linked from the data
    assert json.loads(json.dumps(gumbel)) == gumbel


def test_defaults_of_the_compare_command_come_along(tmp_path: Path) -> None:
    wanted = {"arms": ["pgd", {"class_path": "lift"}], "seeds": 3, "learning_rates": [1e-3, 0.01]}
    assert read_config(written(tmp_path, compare=wanted))["compare"] == wanted


def test_overlays_are_overrides() -> None:
    overlay = str(CONFIGS / "parameterization" / "direct.yaml")
    config = read_config(CONFIGS / "ebm_gumbel.yaml", ["--config", overlay])
    assert config["model"]["init_args"]["parameterization"]["class_path"].endswith("DirectSoftplus")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["--data.batch_size=many"], "batch_size"),
        (["--model.network.depth=3"], "depth"),
        (["--modell.x=3"], "modell"),
        (["--data=NoSuchData"], "NoSuchData"),
    ],
)
def test_a_bad_override_is_said_in_one_line(overrides: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        read_config(CONFIGS / "ebm_gumbel.yaml", overrides)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_or_has_no_model(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_config(tmp_path / "none.yaml")
    (tmp_path / "half.yaml").write_text("data: GumbelDataModule\n")
    with pytest.raises(ValueError, match="no 'model'"):
        read_config(tmp_path / "half.yaml")


# -- resolving ------------------------------------------------------------------------------------------------------


def test_rate_seed_and_steps_are_set_and_nothing_else_is_touched(gumbel: dict[str, Any]) -> None:
    before = copy.deepcopy(gumbel)
    resolved = resolve(gumbel, parse_arm("pgd"), 0.005, 7, 600)
    assert gumbel == before
    assert resolved["model"]["init_args"]["learning_rate"] == 0.005
    assert resolved["data"]["init_args"]["data_seed"] == 7 and resolved["seed_everything"] == 7
    assert resolved["model"]["init_args"]["lr_scheduler"]["init_args"]["T_max"] == 600
    trainer = resolved["trainer"]
    assert (trainer["max_steps"], trainer["max_epochs"], trainer["val_check_interval"]) == (600, -1, 20)
    assert trainer["check_val_every_n_epoch"] is None and trainer["logger"] is False
    assert resolve(gumbel, parse_arm("pgd"), None, 7, 600)["model"]["init_args"]["learning_rate"] is None
    assert resolve(gumbel, parse_arm("pgd"), None, 7, 600, 150)["trainer"]["val_check_interval"] == 150
    assert resolve(gumbel, parse_arm("pgd"), None, 7, 20)["trainer"]["val_check_interval"] == 1


def test_runs_differ_only_in_what_was_asked(gumbel: dict[str, Any]) -> None:
    one, other = (resolve(gumbel, parse_arm("lift"), 0.01, seed, 30) for seed in (1, 2))
    other["data"]["init_args"]["data_seed"] = one["data"]["init_args"]["data_seed"]
    assert other | {"seed_everything": 1} == one


@pytest.mark.parametrize(("steps", "evaluate_every"), [(0, None), (10, 0)])
def test_counts_below_one_are_refused(gumbel: dict[str, Any], steps: int, evaluate_every: int | None) -> None:
    with pytest.raises(ValueError, match="at least one step"):
        resolve(gumbel, parse_arm("pgd"), None, 0, steps, evaluate_every)


def test_a_rate_must_be_positive(gumbel: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"learning_rate=-1\.0"):
        resolve(gumbel, parse_arm("pgd"), -1.0, 0, 10)


def test_what_differs_from_the_lifts_defaults_carries_over_to_its_family(gumbel: dict[str, Any]) -> None:
    """The configuration's lift has body_widths [32, 16] and emission_width 32."""
    assert parameterization(gumbel, "lift")["body_widths"] == [32, 16]
    assert parameterization(gumbel, "lift")["emission_width"] == 32
    own = parameterization(gumbel, "lift:body_widths=[8,8]:emission_width=null")
    assert own["body_widths"] == [8, 8] and own["emission_width"] is None


def test_a_default_does_not_replace_that_of_another_class(gumbel: dict[str, Any]) -> None:
    narrow = {"class_path": f"{NarrowLift.__module__}.{NarrowLift.__qualname__}"}
    carried = parameterization(gumbel, Arm("narrow", narrow))
    assert carried == {"body_widths": [32, 16], "standardize_summary": False}


def test_nothing_carries_over_between_families(gumbel: dict[str, Any]) -> None:
    gained = copy.deepcopy(gumbel)
    gained["model"]["init_args"]["parameterization"] = {"class_path": "DirectSoftplus", "init_args": {"beta": 2.0}}
    assert parameterization(gained, "direct")["beta"] == 1.0
    assert parameterization(gained, "lift")["body_widths"] == [64, 64, 96]


def test_what_carries_over_must_fit_the_arm(gumbel: dict[str, Any]) -> None:
    changed = copy.deepcopy(gumbel)
    changed["model"]["init_args"]["parameterization"]["init_args"]["slack_start"] = -2.0
    with pytest.raises(ValueError, match="arm 'lift:use_slack=false': slack_start"):
        parameterization(changed, "lift:use_slack=false")


def test_network_arguments_are_replaced_and_checked(gumbel: dict[str, Any]) -> None:
    resolved = resolve(gumbel, parse_arm("pgd:network.widths=[3,4]"), None, 0, 10)
    network = resolved["model"]["init_args"]["network"]["init_args"]
    assert network["widths"] == [3, 4] and network["free_weight_std"] == 1.0
    with pytest.raises(ValueError, match=r"arm 'pgd:network\.depth=3'.*depth"):
        resolve(gumbel, parse_arm("pgd:network.depth=3"), None, 0, 10)


def test_callbacks_that_alter_training_stay_and_those_that_look_go(gumbel: dict[str, Any]) -> None:
    config = copy.deepcopy(gumbel)
    kept = [
        "lightning.pytorch.callbacks.EMAWeightAveraging",
        "lightning.pytorch.callbacks.GradientAccumulationScheduler",
        "lightning_lift.callbacks.PathConditioning",
    ]
    scheduling = {"class_path": kept[1], "init_args": {"scheduling": {0: 2}}}
    gone = ["RichProgressBar", "EarlyStopping", "LearningRateMonitor", "RichModelSummary"]
    config["trainer"]["callbacks"] += [
        {"class_path": kept[0]},
        scheduling,
        {"class_path": kept[2]},
        *({"class_path": f"lightning.pytorch.callbacks.{name}"} for name in gone),
    ]
    config["trainer"]["callbacks"][-3]["init_args"] = {"monitor": "val/nll"}
    paths = [c["class_path"] for c in resolve(config, parse_arm("pgd"), None, 0, 10)["trainer"]["callbacks"]]
    assert paths == kept
    arm = {"class_path": "pgd", "callbacks": [{"class_path": "ShoulderOccupancy", "init_args": {"every_n_steps": 5}}]}
    callbacks = resolve(gumbel, parse_arm(arm), None, 0, 10)["trainer"]["callbacks"]
    assert [c["class_path"] for c in callbacks] == ["lightning_lift.callbacks.ShoulderOccupancy"]


def test_a_schedules_largest_rate_follows_the_rate(tmp_path: Path) -> None:
    one_cycle = "torch.optim.lr_scheduler.OneCycleLR"
    flags = [f"--model.lr_scheduler={one_cycle}", "--model.lr_scheduler.max_lr=0.06"]
    config = read_config(CONFIGS / "ebm_gumbel.yaml", [*flags, "--model.lr_scheduler.total_steps=3000"])
    schedule = resolve(config, parse_arm("pgd"), 0.01, 0, 300)["model"]["init_args"]["lr_scheduler"]["init_args"]
    assert schedule["total_steps"] == 300 and schedule["max_lr"] == pytest.approx(0.02)


def test_a_baseline_without_parameterization_cannot_be_an_arm() -> None:
    config = read_config(CONFIGS / "nflows_eight_gaussians.yaml")
    with pytest.raises(ValueError, match="has no parameterization, so arm 'pgd'"):
        resolve(config, parse_arm("pgd"), None, 0, 10)


def test_matched_networks_have_the_nearest_number_of_parameters(gumbel: dict[str, Any]) -> None:
    arm = "direct"
    target = count_parameters(resolve(gumbel, parse_arm("lift"), None, 0, 10))
    resolved = resolve(gumbel, parse_arm(f"{arm}:match_parameters=lift"), None, 0, 10)
    (width, same) = resolved["model"]["init_args"]["network"]["init_args"]["widths"]
    assert width == same > 6
    counts = {}
    for near in (width - 1, width, width + 1):
        resolved["model"]["init_args"]["network"]["init_args"]["widths"] = [near, near]
        counts[near] = count_parameters(resolved)
    assert min(counts, key=lambda near: abs(counts[near] - target)) == width


# -- making ---------------------------------------------------------------------------------------------------------


def test_every_arm_of_a_seed_starts_from_one_network(gumbel: dict[str, Any]) -> None:
    def start(arm: str, seed: int) -> dict[str, torch.Tensor]:
        module = make_from(resolve(gumbel, parse_arm(arm), 0.01, seed, 10), seed)[0]
        weights = module.parameterization.weights(torch.zeros(3, 1))  # type: ignore[operator, union-attr]
        return {**dict(module.network.named_parameters()), **weights}  # type: ignore[union-attr]

    first = start("pgd", 5)
    for arm in ("direct:latent_gain=10", "lift"):
        for name, tensor in start(arm, 5).items():
            torch.testing.assert_close(tensor, first[name], rtol=1e-5, atol=0.0)
    name = next(n for n in first if "bias" in n)
    assert not torch.equal(start("pgd", 6)[name], first[name])


def test_made_parts_have_the_settings_and_storable_hyperparameters(gumbel: dict[str, Any]) -> None:
    config = resolve(gumbel, parse_arm("direct:latent_gain=3"), 0.02, 4, 10)
    before = copy.deepcopy(config)
    module, data, settings = make(RunSpec("x", "final", 0.02, 4, 10, config))
    assert config == before  # the record stores it
    assert data.data_seed == 4 and data.batch_size == 16  # type: ignore[attr-defined]
    assert module.dim == 1 and module.learning_rate == 0.02  # type: ignore[attr-defined]
    assert imported(module.hparams["_class_path"]) is LogConcaveEBM
    assert module.hparams["parameterization"] == config["model"]["init_args"]["parameterization"]
    assert L.Trainer(**settings).max_steps == 10


# -- evaluations and schedules -----------------------------------------------------------------------------------------


def not_asked() -> NoReturn:
    raise AssertionError("the settings say it already")


@pytest.mark.parametrize(
    ("trainer", "every"),
    [
        ({"check_val_every_n_epoch": 1, "val_check_interval": None}, 10),  # 300 // 30: more often than each 50
        ({"check_val_every_n_epoch": 1, "val_check_interval": 0.1}, 5),
        ({"check_val_every_n_epoch": None, "val_check_interval": 4}, 4),
        ({"check_val_every_n_epoch": None, "val_check_interval": 8, "accumulate_grad_batches": 2}, 4),
        ({"check_val_every_n_epoch": None, "val_check_interval": 100}, 10),
        ({"check_val_every_n_epoch": None, "val_check_interval": "00:01:00:00"}, 10),
    ],
)
def test_evaluations(trainer: dict[str, Any], every: int) -> None:
    assert evaluation_interval(trainer, 300, lambda: 50) == every


def test_a_short_run_is_evaluated_each_step() -> None:
    assert evaluation_interval({"check_val_every_n_epoch": None, "val_check_interval": 100}, 5, not_asked) == 1


@pytest.mark.parametrize(
    ("name", "given", "wanted"),
    [
        ("CosineAnnealingLR", {"T_max": 300, "eta_min": 0.1}, {"T_max": 30, "eta_min": 0.1}),
        ("OneCycleLR", {"total_steps": 300, "pct_start": 0.3}, {"total_steps": 30, "pct_start": 0.3}),
        ("StepLR", {"step_size": 100, "gamma": 0.1}, {"step_size": 10, "gamma": 0.1}),
        ("MultiStepLR", {"milestones": [100, 250], "gamma": 0.1}, {"milestones": [10, 25], "gamma": 0.1}),
        ("ExponentialLR", {"gamma": 0.99}, {"gamma": 0.99**10}),
        ("ConstantLR", {"total_iters": 4}, {"total_iters": 1}),
    ],
)
def test_lengths_scale_with_the_steps(name: str, given: dict[str, Any], wanted: dict[str, Any]) -> None:
    scheduler = {"class_path": f"torch.optim.lr_scheduler.{name}", "init_args": given}
    before = {**scheduler, "init_args": dict(given)}
    scaled = scaled_scheduler(scheduler, 30, lambda: 300)
    assert isinstance(scaled, dict) and scaled["init_args"].keys() == wanted.keys()
    for key, value in wanted.items():
        assert scaled["init_args"][key] == pytest.approx(value)
    assert scheduler == before and scaled_scheduler(scheduler, 300, lambda: 300) == scheduler


def test_a_scheduler_without_lengths_stays_and_nothing_is_asked() -> None:
    plateau = {"class_path": "torch.optim.lr_scheduler.ReduceLROnPlateau", "init_args": {"patience": 10}}
    assert scaled_scheduler(plateau, 30, not_asked) == plateau
