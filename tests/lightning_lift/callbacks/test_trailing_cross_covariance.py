import csv
from pathlib import Path

import pytest
import torch

from lightning_lift.callbacks import TrailingCrossCovariance
from lightning_lift.diagnostics import probe_cross_covariance
from tests.lightning_lift.callbacks.runs import (
    PARAMETERIZATIONS,
    GoesOn,
    break_,
    events,
    flat,
    make_trainer,
    small_data,
    small_model,
)


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "logs" / "a" / "trailing_cross_covariance.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_at_a_tiny_rate_it_reads_what_the_probe_reads(tmp_path: Path) -> None:
    model, data = small_model(lr=1e-9), small_data()
    make_trainer(tmp_path, [TrailingCrossCovariance(60, window=48)], max_steps=60).fit(model, data)
    rows = {row["reading"]: row for row in table(tmp_path)}
    probe = probe_cross_covariance(model, data.probe_batches(48))
    for name, reading in (("latent_gradient", probe.latent_gradient), ("slack", probe.slack)):
        row = rows[name]
        assert (row["step"], row["status"], row["num_batches"]) == ("60", "ok", "48")
        for number in ("trace", "frobenius"):
            error = (float(row[f"{number}_error"]) ** 2 + getattr(reading, f"{number}_error") ** 2) ** 0.5
            assert float(row[number]) == pytest.approx(getattr(reading, number), abs=3.0 * error)
        scalars = events(tmp_path).Scalars(f"trailing_cross_covariance/{name}/frobenius")
        assert [(e.step, e.value) for e in scalars] == [(60, pytest.approx(float(row["frobenius"])))]


def test_direct_has_no_slack_and_windows_hold_their_own_steps(tmp_path: Path) -> None:
    callback = TrailingCrossCovariance(8, window=5)
    model = small_model(PARAMETERIZATIONS["direct"])
    make_trainer(tmp_path, [callback], max_steps=19, accumulate_grad_batches=2).fit(model, small_data())
    rows = table(tmp_path)
    assert [(r["step"], r["reading"], r["status"]) for r in rows if r["reading"] == "slack"] == [
        ("8", "slack", "no slack"),
        ("16", "slack", "no slack"),
    ]
    assert all(r["num_batches"] == "5" for r in rows if r["reading"] == "latent_gradient")
    assert callback.rows.steps == [], "19 is before the third window's first step"


def test_training_is_the_same_and_a_resume_inside_a_window_reads_the_same(tmp_path: Path) -> None:
    bare = small_model()
    make_trainer(tmp_path / "bare", max_steps=20).fit(bare, small_data())
    whole = small_model()
    make_trainer(tmp_path / "whole", [TrailingCrossCovariance(10, 8)], max_steps=20).fit(whole, small_data())
    assert torch.equal(flat(bare), flat(whole))
    half = small_model()
    trainer = make_trainer(tmp_path / "second", [TrailingCrossCovariance(10, 8)], max_steps=15)
    trainer.fit(half, small_data())
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    trainer = make_trainer(tmp_path / "second", [TrailingCrossCovariance(10, 8)], max_steps=20)
    trainer.fit(small_model(), small_data(), ckpt_path=str(tmp_path / "half.ckpt"), weights_only=True)
    assert table(tmp_path / "second") == table(tmp_path / "whole")
    assert [row["step"] for row in table(tmp_path / "whole")] == ["10", "10", "20", "20"]


def test_a_diverged_model_ends_nothing(tmp_path: Path) -> None:
    model = small_model(PARAMETERIZATIONS["direct"])
    break_(model)
    with pytest.warns(UserWarning, match="no reading at step 8"):
        make_trainer(tmp_path, [TrailingCrossCovariance(8, 6), GoesOn()], max_steps=8, limit_val_batches=0).fit(
            model, small_data()
        )


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"window": 3}, "window=3"),
        ({"every_n_steps": 10, "window": 11}, "must not overlap"),
        ({"num_permutations": 0}, "num_permutations=0"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_bad_arguments_are_refused(kwargs: dict[str, int], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        TrailingCrossCovariance(**kwargs)
