"""Rows with parts: served whole, in their own units, sharded and resumed as rows alone are."""

import numpy as np
import pytest
import torch

from lightning_lift.datamodules import Batch, BatchLoader, PartsDataModule, Units, loading
from lightning_lift.datamodules.batches import num_rows, take_rows


def batch(count: int = 23, start: int = 0) -> Batch:
    """Rows whose parts all tell which row they are of."""
    number = torch.arange(start, start + count, dtype=torch.float64)
    return Batch(number[:, None].repeat(1, 2), number.reshape(-1, 1, 1, 1).repeat(1, 3, 2, 2), number, number + 1)


def assert_whole(rows: Batch) -> None:
    numbers = rows.x[:, 0]
    assert all(part.dtype == torch.float32 for part in rows)
    assert torch.equal(rows.context, numbers.reshape(-1, 1, 1, 1).expand(-1, 3, 2, 2))
    assert torch.equal(rows.target, numbers) and torch.equal(rows.weight, numbers + 1)


class Own(PartsDataModule):
    """Splits given at construction."""

    def __init__(self, splits: dict[str, Batch], standardized: tuple[str, ...] = (), **arguments: object) -> None:
        shapes = {"dim": 2, "context_shape": (3, 2, 2), "target_dim": 1, "weighted": True}
        super().__init__(**{"name": "own", "batch_size": 4, **shapes, **arguments})
        self.given, self.standardized = splits, standardized

    def load(self) -> dict[str, Batch]:
        return self.standardize(self.given, self.standardized)


def own(standardized: tuple[str, ...] = (), **splits: Batch | None) -> Own:
    given = {"train": batch(), "val": batch(5, 23), "test": batch(7, 28), **splits}
    return Own({key: rows for key, rows in given.items() if rows is not None}, standardized)


def test_every_loader_serves_whole_batches_of_every_row() -> None:
    data = own()
    loaders = {key: getattr(data, f"{key}_dataloader")() for key in ("train", "val", "test", "predict", "calibration")}
    served = {key: list(loader) for key, loader in loaders.items()}
    served["probe"] = list(data.probe_batches(3))
    for batches in served.values():
        for rows in batches:
            assert_whole(rows)
    counts = {key: sum(map(num_rows, batches)) for key, batches in served.items()}
    assert counts == {"train": 20, "val": 5, "test": 7, "predict": 7, "calibration": 23, "probe": 12}
    assert len(torch.cat([rows.target for rows in served["train"]]).unique()) == 20
    served["val"][0].target.zero_()
    assert_whole(next(iter(data.val_dataloader())))  # what was handed out was a copy


def test_processes_share_a_global_batch_and_a_resumed_loader_goes_on_where_it_was(monkeypatch) -> None:
    def loader(size: int) -> BatchLoader:
        return BatchLoader.fixed(batch(), size, base_seed=3, shuffle=True, drop_last=True)

    alone = list(loader(6))
    shares = []
    for rank in range(2):
        monkeypatch.setattr(loading, "rank_and_world_size", lambda rank=rank: (rank, 2))
        shares.append(list(loader(3)))
    for whole, *parts in zip(alone, *shares, strict=True):
        for part, pieces in zip(whole, zip(*parts, strict=True), strict=True):
            assert torch.equal(part, torch.cat(pieces))
    interrupted, resumed = loader(3), loader(3)
    next(iter(interrupted))
    resumed.load_state_dict(interrupted.state_dict())
    assert all(torch.equal(a.x, b.x) for a, b in zip(resumed, shares[1][1:], strict=True))


def test_fresh_rows_are_drawn_whole() -> None:
    def draw(count: int, generator: torch.Generator) -> Batch:
        return take_rows(batch(100), torch.randperm(100, generator=generator)[:count])

    loader = BatchLoader.stream(draw, 5, 3, base_seed=1)
    first, again = list(loader), list(BatchLoader.stream(draw, 5, 3, base_seed=1))
    for rows, same in zip(first, again, strict=True):
        assert_whole(rows)
        assert torch.equal(rows.x, same.x)


def test_each_field_has_units_of_its_own_from_the_training_rows() -> None:
    rng = np.random.default_rng(0)

    def rows(count: int) -> Batch:
        x = np.column_stack([rng.normal(1e6, 2.0, count), np.full(count, 3.0)])
        parts = (x, rng.normal(-4, 0.5, (count, 3, 2, 2)), rng.normal(7, 10, count), rng.uniform(1, 2, count))
        return Batch(*map(torch.from_numpy, parts))

    given = {"train": rows(200), "val": rows(20), "test": rows(20)}
    data = Own(given, standardized=("x", "context", "target"))
    data.setup()
    assert data.units.scale[1] == 1 and data.units.location[1] == 3  # a constant column is shifted only
    assert {name: part.location.shape for name, part in data.field_units.items()} == {"context": (1,), "target": (1,)}
    train = data.split("train")
    for part in (train.x[:, 0], train.context, train.target):
        table, weight = part.double().reshape(200, -1), train.weight.double().unsqueeze(1) / train.weight.sum()
        mean, square = ((weight * moment).sum(0).mean() for moment in (table, table.square()))
        assert abs(float(mean)) < 1e-6 and float(square) == pytest.approx(1, rel=1e-5)
    torch.testing.assert_close(train.weight, given["train"].weight.float())
    served = data.split("test")._asdict()
    for name, units in (data.field_units | {"x": data.units}).items():
        assert isinstance(units, Units)
        torch.testing.assert_close(units.invert(served[name].double()), getattr(given["test"], name), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ({"test": None}, r"gave no \['test'\] split"),
        ({"val": batch()._replace(x=torch.zeros(23, 3))}, r"x of split 'val' must be \(rows, 2\), got \(23, 3\)"),
        ({"val": batch()._replace(context=torch.zeros(23, 3))}, r"context of split 'val' must be \(rows, 3, 2, 2\)"),
        (
            {"val": batch()._replace(target=torch.zeros(23, 1))},
            r"target of split 'val' must be \(rows,\), got \(23, 1\)",
        ),
        ({"val": batch()._replace(target=torch.zeros(22))}, r"target of split 'val' must be \(rows,\), got \(22,\)"),
        ({"val": batch()._replace(target=None)}, "target of split 'val' is missing"),
        (
            {"train": batch()._replace(target=batch().target.log())},
            "1 of 23 rows of target of split 'train' are not fin",
        ),
    ],
)
def test_a_part_that_does_not_fit_is_named(splits, message) -> None:
    with pytest.raises(ValueError, match=message):
        own(**splits).setup()


def test_a_part_that_is_not_stated_is_refused_and_a_target_to_predict_is_not_asked_for() -> None:
    with pytest.raises(ValueError, match="weight of split 'train' is not stated"):
        Own(own().given, weighted=False).setup()
    data = own(predict=Batch(*batch(3)[:2]))
    assert next(iter(data.predict_dataloader())).target is None
