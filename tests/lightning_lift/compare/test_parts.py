"""A comparison of a task with a target: its own metric, one start and one order of rows, what a lift shows."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from lightning_lift.compare import RunRecord, RunSpec, make, parse_arm, read_config, resolve
from lightning_lift.compare.records import monitored
from lightning_lift.compare.report.results import Comparison
from lightning_lift.compare.run import run
from lightning_lift.modules import ConvexRegression

CONFIG = """
trainer: {accelerator: cpu, max_steps: 12}
model:
  class_path: ConvexRegression
  init_args:
    increasing: [0]
    network: {class_path: ICNN, init_args: {widths: [8]}}
data:
  class_path: PairsDataModule
  init_args: {table: load_diabetes, x: [bmi, bp], target: target, batch_size: 32}
"""


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunRecord]:
    folder: Path = tmp_path_factory.mktemp("compare")
    (folder / "config.yaml").write_text(CONFIG)
    config = read_config(folder / "config.yaml", [])
    found = {}
    for arm in ("pgd", "lift"):
        parsed = parse_arm(arm)
        resolved = resolve(config, parsed, None, 0, 12, 6)
        found[arm] = run(RunSpec(parsed.label, "final", None, 0, 12, resolved), folder)
    return found


def test_every_arm_finishes_from_one_start_on_one_order_of_rows(records: dict[str, RunRecord]) -> None:
    assert {arm: record.error for arm, record in records.items() if record.error} == {}
    assert len({record.start_hash for record in records.values()}) == 1
    assert len({record.data_hash for record in records.values()}) == 1 and records["lift"].data_hash
    for record in records.values():
        assert np.isfinite(record.curves["latent/step"]).all()
        assert ("zeros/fraction" if record.arm == "pgd" else "shoulder/occupancy") in record.curves


def test_the_task_says_which_metric_chooses_and_which_are_reported(records: dict[str, RunRecord]) -> None:
    for record in records.values():
        assert (record.metric, record.headlines[0]) == ("val/loss", "test/mse")
        assert record.metrics["best"]["val/loss"] == min(record.curves["val/loss"])
    assert monitored({"val/loss": 1.0, "val/nll": 2.0}, "val/loss") == "val/loss"
    comparison = Comparison.of({}, list(records.values()))
    assert comparison.monitor == "val/loss"
    assert comparison.headlines == ["test/mse", "test/r2"]


def test_the_command_lines_factory_is_told_what_the_regression_wants(records: dict[str, RunRecord]) -> None:
    module = make(dataclasses.replace(records["lift"].spec, steps=2))[0]
    assert isinstance(module, ConvexRegression)
    assert isinstance(module.network.output_bias, torch.nn.Parameter)
    assert "output_monotone_weight" in module.network.nonnegative_names()
