import math

import pytest

from lightning_lift.compare.report import tables
from lightning_lift.compare.report.results import Comparison
from lightning_lift.compare.report.tables import Table
from lightning_lift.compare.statistics import compare_arms
from tests.lightning_lift.compare.report.synthetic import synthetic_records, synthetic_settings


@pytest.fixture
def comparison() -> Comparison:
    return Comparison.of(synthetic_settings(8), synthetic_records(8))


def cells(table: Table, row: str) -> dict[str, str]:
    (found,) = [line for line in table.rows if line[0] == row]
    return dict(zip(table.columns, found, strict=True))


def test_a_row_must_fit_its_heads() -> None:
    with pytest.raises(ValueError, match="2 cells under 1 heads"):
        Table("t", ["a"], [["1", "2"]])


def test_arms_with_their_arguments(comparison: Comparison) -> None:
    table = tables.arms_table(comparison)
    lift = cells(table, "lift")
    assert lift["parameterization"] == "Lift" and "body_widths=[64, 64, 96]" in lift["arguments"]
    assert lift["learning rate"] == "0.001" and lift["trained parameters"] == "3,281,000"


def test_what_arms_share_and_what_they_do_not(comparison: Comparison) -> None:
    rows = dict(tables.common_table(comparison).rows)
    assert rows["network"] == "ICNN(widths=[128, 128, 128], strong_convexity=0.001)"
    assert rows["optimizer"] == "Adam(betas=[0.9, 0.99])"  # the rate is each arm's own
    assert "data_seed" not in rows["data"] and rows["seeds"] == "8 (0-7)"
    for record in comparison.records:
        if record.arm == "direct":
            record.config["model"]["init_args"]["network"]["init_args"]["widths"] = [900]
    rows = dict(tables.common_table(comparison).rows)
    assert "widths=[900]" in rows["network (direct)"] and "widths=[128" in rows["network (pgd)"]


def test_results_count_finished_runs_only(comparison: Comparison) -> None:
    table = tables.results_table(comparison, "test/nll")
    assert cells(table, "direct")["runs"] == "7 of 8" and cells(table, "pgd")["runs"] == "8 of 8"
    assert "lower" in table.note and "higher" in tables.results_table(comparison, "test/accuracy").note


def test_quartiles_have_the_digits_that_tell_them_apart() -> None:
    records = synthetic_records(5, ("pgd",), unfinished=False)
    for record in records:
        record.metrics["best"] = {"test/nll": 1.5772 + 0.0001 * record.seed}
    row = cells(tables.results_table(Comparison.of({}, records), "test/nll"), "pgd")
    assert row["best: median [quartiles]"] == "1.57740 [1.57730, 1.57750]"


def test_differences_say_who_wins_and_what_was_left_out(comparison: Comparison) -> None:
    found = compare_arms(comparison.values("best", "test/nll"), comparison.unfinished)
    table = tables.differences_table("t", found)
    row = cells(table, "pgd − direct")  # noqa: RUF001
    assert row["pairs"] == "7 (+1)" and "In brackets" in table.note
    assert row["first wins (win/tie/loss)"] == "100 % (8/0/0)"


def test_outcomes_and_errors(comparison: Comparison) -> None:
    table = tables.outcomes_table(comparison)
    assert list(table.rows[1]) == ["direct", "7", "1", "0", "0"] and list(table.rows[3]) == ["lift", "7", "0", "1", "0"]
    errors = tables.errors_table(comparison)
    assert errors is not None and errors.rows[1][3:] == ["7", "OutOfMemoryError: could not allocate <1 GiB> & more"]
    assert tables.errors_table(Comparison.of({}, synthetic_records(2, unfinished=False))) is None


def test_tuning_names_every_rate_and_the_chosen_one(comparison: Comparison) -> None:
    rows = [list(row) for row in tables.tuning_table(comparison).rows]
    assert len(rows) == 12
    assert [row[1] for row in rows if row[0] == "lift" and row[4] == "chosen"] == ["0.001"]
    assert all(row[3] == "3 of 3" for row in rows)


def test_cost_by_the_timing_run(comparison: Comparison) -> None:
    lift = cells(tables.cost_table(comparison), "lift")
    assert lift["a training step"] == "21.0 ms" and lift["times the cheapest"] == "3.5"
    assert lift["training time of a run"] == "63.0 s" and "alone" in lift["measured"]
    for record in comparison.records:  # the last evaluation may come before the last step
        record.curves = {name: curve[:20] for name, curve in record.curves.items()}
    assert cells(tables.cost_table(comparison), "lift")["training time of a run"] == "63.0 s"
    records = synthetic_records(2, timing=False)
    for record in records:
        record.engine = "vectorized"
    assert "share" in cells(tables.cost_table(Comparison.of({}, records)), "lift")["measured"]


def test_the_latent_step_stands_beside_the_cost() -> None:
    records = synthetic_records(3, labels=("pgd",), tuning=False, unfinished=False)
    for record, first in zip([r for r in records if r.purpose == "final"], (0.02, 0.04, 0.03), strict=True):
        record.learning_rate, record.curves["latent/step"] = 0.01, [math.nan, first, 9.0]
    row = cells(tables.cost_table(Comparison.of({}, records)), "pgd")
    assert (row["latent step at the first evaluation"], row["over the learning rate"]) == ("0.0300", "3.00")


def test_the_table_of_rates_counts_as_the_rule_of_choice_does() -> None:
    records = synthetic_records(1, ("pgd",))
    first = next(record for record in records if record.purpose == "tune")
    del first.metrics["best"]["val/nll"]  # its curve still has it
    table = tables.tuning_table(Comparison.of({}, records))
    assert [row[3] for row in table.rows] == ["2 of 3", "3 of 3", "3 of 3"]
