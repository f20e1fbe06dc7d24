import csv
from pathlib import Path

import lightning as L
import pytest
import torch
from torch.utils.data import DataLoader

from lightning_lift.callbacks import UpdateNoise
from lightning_lift.diagnostics import update_noise
from tests.lightning_lift.callbacks.runs import PARAMETERIZATIONS, events, flat, make_trainer, small_data, small_model


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "logs" / "a" / "update_noise.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_last_look_is_the_diagnostic_at_the_final_weights(tmp_path: Path) -> None:
    model, data = small_model(), small_data()
    callback = UpdateNoise(10, num_batches=12, with_trace=True)
    make_trainer(tmp_path, [callback], max_steps=20, limit_val_batches=0).fit(model, data)
    rows = table(tmp_path)
    names = ["gradient", "noise", "latent", "random", "trace"]
    assert [(row["step"], row["direction"]) for row in rows] == [(s, n) for s in ("10", "20") for n in names]
    readings = update_noise(model, data.probe_batches(12, 20), with_trace=True)
    log = events(tmp_path)
    for row, reading in zip(rows[5:], readings, strict=True):
        for key in ("total", "objective", "coupling", "jitter", "total_error"):
            assert float(row[key]) == pytest.approx(getattr(reading, key), rel=1e-4, abs=1e-9)
        scalar = log.Scalars(f"update_noise/{reading.direction}/coupling")[-1]
        assert (scalar.step, scalar.value) == (20, pytest.approx(reading.coupling, rel=1e-4))


def test_training_is_the_same_and_direct_has_no_jitter(tmp_path: Path) -> None:
    finals = []
    for i, callbacks in enumerate(([UpdateNoise(5, num_batches=3)], [])):
        model = small_model(PARAMETERIZATIONS["direct"])
        make_trainer(tmp_path / str(i), callbacks, max_steps=10).fit(model, small_data())
        finals.append(flat(model))
    assert torch.equal(*finals)
    rows = table(tmp_path / "0")
    assert {row["direction"] for row in rows} == {"gradient", "noise", "random"}
    assert all(float(row["jitter"]) == 0.0 and float(row["objective"]) > 0.0 for row in rows)


def test_bad_use_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="num_batches=2"):
        UpdateNoise(num_batches=2)
    with pytest.raises(ValueError, match="seed=-1"):
        UpdateNoise(seed=-1)

    class Bare(L.LightningDataModule):
        def train_dataloader(self) -> DataLoader:
            return DataLoader(torch.zeros(8, 1), batch_size=4)

    with pytest.raises(ValueError, match="UpdateNoise needs a data module with probe_batches"):
        make_trainer(tmp_path, [UpdateNoise()]).fit(small_model(), Bare())
