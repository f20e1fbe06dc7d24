import math

import pytest
import torch

from lightning_lift.datamodules import DensityDataModule, GumbelDataModule, SampledDataModule, loading


def small(**arguments: object) -> GumbelDataModule:
    return GumbelDataModule(**{"batch_size": 8, "num_val": 30, "num_test": 31, "num_calibration": 40, **arguments})


class Own(DensityDataModule):
    """A data module with splits given at construction."""

    def __init__(self, splits: dict[str, torch.Tensor], **arguments: int) -> None:
        super().__init__(**{"dim": 2, "name": "own", "batch_size": 2, **arguments})
        self.given = splits

    def load(self) -> dict[str, torch.Tensor]:
        return self.given


def rows(count: int = 4, dim: int = 2) -> torch.Tensor:
    return torch.arange(float(count * dim)).reshape(count, dim)


@pytest.mark.parametrize("num_train", [None, 50])
def test_equal_settings_give_equal_rows_and_setup_is_idempotent(num_train) -> None:
    first, second = small(num_train=num_train), small(num_train=num_train)
    first.setup("fit")
    kept = first.split("test")
    first.setup("test")
    assert first.split("test") is kept
    for key in ["val", "test", "predict", "calibration"]:
        assert torch.equal(first.split(key), second.split(key))
    pairs = zip(first.train_dataloader(), second.train_dataloader(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(first.split("test"), small(num_train=num_train, data_seed=1).split("test"))


@pytest.mark.parametrize("num_train", [None, 50])
def test_splits_training_calibration_and_probes_share_no_row(num_train) -> None:
    data = small(num_train=num_train)
    parts = [data.split("val"), data.split("test")]
    parts += [torch.cat(list(data.train_dataloader()))]
    if num_train is None:
        parts += [
            data.split("calibration"),
            torch.cat(list(data.probe_batches(5))),
            torch.cat(list(data.probe_batches(5, 1))),
        ]
    joined = torch.cat(parts)
    assert len(torch.unique(joined)) == len(joined)


def test_every_batch_handed_out_is_float32() -> None:
    data = small()
    loaders = [data.train_dataloader(), data.val_dataloader(), data.test_dataloader(), data.predict_dataloader()]
    for loader in [*loaders, data.calibration_dataloader(), data.probe_batches(2)]:
        assert all(batch.dtype == torch.float32 and batch.shape[1] == 1 for batch in loader)
    assert {t.dtype for t in (data.support, data.window)} == {torch.float32}
    assert {t.dtype for t in (data.location, data.scale)} == {torch.float64}
    assert data.log_scale == 0.0 and data.dim == 1 and data.has_log_prob


def test_calibration_rows() -> None:
    drawn = torch.cat(list(small().calibration_dataloader()))
    assert len(drawn) == 40 and torch.equal(drawn, torch.cat(list(small().calibration_dataloader())))
    fixed = small(num_train=50)
    assert torch.equal(torch.cat(list(fixed.calibration_dataloader())), fixed.split("train"))


def test_calibrating_and_probing_do_not_disturb_training() -> None:
    calm, busy = small(num_train=50), small(num_train=50)
    expected = list(calm.train_dataloader())
    got = []
    for batch in busy.train_dataloader():
        list(busy.calibration_dataloader()), list(busy.probe_batches(3)), list(busy.val_dataloader())
        got.append(batch)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_calibration_and_probes_are_the_same_in_every_process(monkeypatch) -> None:
    alone = [torch.cat(list(small().calibration_dataloader())), torch.cat(list(small().probe_batches(3)))]
    monkeypatch.setattr(loading, "rank_and_world_size", lambda: (1, 2))
    shared = [torch.cat(list(small().calibration_dataloader())), torch.cat(list(small().probe_batches(3)))]
    assert all(torch.equal(a, b) for a, b in zip(alone, shared, strict=True))


def test_probe_batches_of_a_fixed_set_are_training_rows_without_repeats() -> None:
    data = small(num_train=50)
    train = set(data.split("train").flatten().tolist())
    for batch in data.probe_batches(4):
        assert batch.shape == (8, 1) and len(torch.unique(batch)) == 8 and set(batch.flatten().tolist()) <= train


def test_training_needs_enough_rows_for_all_processes(monkeypatch) -> None:
    monkeypatch.setattr(loading, "rank_and_world_size", lambda: (0, 8))
    with pytest.raises(ValueError, match=r"training split of gumbel: 50 rows .* 64 rows"):
        small(num_train=50).train_dataloader()


def test_setup_under_inference_mode_leaves_rows_that_can_be_trained_on() -> None:
    data = small(num_train=50)
    with torch.inference_mode():
        data.setup("test")
    weight = torch.ones(1, requires_grad=True)
    (next(iter(data.train_dataloader())) * weight).sum().backward()


def test_hyperparameters_are_plain_and_rebuild_the_module(tmp_path) -> None:
    data = small(num_train=50, loc=0.5)
    torch.save(dict(data.hparams), tmp_path / "h.pt")
    loaded = torch.load(tmp_path / "h.pt", weights_only=True)
    assert "data_seed" in loaded and "seed" not in loaded
    assert torch.equal(GumbelDataModule(**loaded).split("train"), data.split("train"))


def test_global_random_state_is_left_alone() -> None:
    before = torch.get_rng_state()
    data = small()
    list(data.train_dataloader()), list(data.probe_batches(2))
    assert torch.equal(before, torch.get_rng_state())


def test_unknown_density_says_so() -> None:
    data = Own({"train": rows(), "val": rows(), "test": rows()})
    assert not data.has_log_prob and data.entropy is None and math.isnan(data.entropy_error)
    with pytest.raises(NotImplementedError, match=r"'own' is not known"):
        data.log_prob(rows())
    with pytest.raises(RuntimeError, match=r"support of 'own' .* call setup\(\) first"):
        _ = data.support
    with pytest.raises(ValueError, match="no split 'tset'"):
        data.split("tset")


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ({"train": rows(), "val": rows()}, r"no \['test'\] split"),
        ({"val": rows(), "test": rows()}, r"no \['calibration'\] split"),
        ({"val": rows(), "test": rows(), "calibration": rows()}, "must give batches_per_epoch"),
        ({"train": rows(4, 3), "val": rows(), "test": rows()}, r"'train' must be \(rows, 2\), got \(4, 3\)"),
        ({"train": rows(), "val": rows() * 1e39, "test": rows()}, r"4 of 4 rows of split 'val' are not finite"),
    ],
)
def test_bad_splits(splits, message) -> None:
    with pytest.raises(ValueError, match=message):
        Own(splits).setup()


def test_too_few_rows_for_a_batch_stop_a_fit_and_not_an_evaluation() -> None:
    data = Own({"train": rows(1), "val": rows(), "test": rows()}, eval_batch_size=100)
    assert [len(batch) for batch in data.predict_dataloader()] == [4]
    with pytest.raises(ValueError, match=r"1 rows are fewer than one batch of 2 rows .* lower batch_size to at most 1"):
        data.train_dataloader()


def test_bad_ranges_and_scales() -> None:
    data = Own({})
    unit, infinite = torch.tensor([[0.0, 0.0], [1.0, 1.0]]), torch.tensor([[0.0, 0.0], [1.0, torch.inf]])
    with pytest.raises(ValueError, match="window must be finite"):
        data.set_range(infinite, infinite)
    with pytest.raises(ValueError, match="support must be"):
        data.set_range(unit.flip(0), unit)
    with pytest.raises(ValueError, match="positive and finite"):
        data.set_standardization(torch.zeros(2), torch.tensor([1.0, 0.0]))
    with pytest.raises(ValueError, match=r"must be \(2,\)"):
        data.set_standardization(torch.zeros(3), torch.ones(2))


class Fixed(SampledDataModule):
    def __init__(self, extra: int = 1, **kwargs: int) -> None:
        super().__init__(dim=1, name="fixed", num_val=500, batches_per_epoch=7, **kwargs)
        self.save_hyperparameters()


def test_hyperparameters_leave_out_what_a_constructor_fixes() -> None:
    data = Fixed(num_test=5)
    assert data.hparams["num_test"] == 5 and data.hparams["num_calibration"] == 16384
    assert not {"num_val", "batches_per_epoch"} & data.hparams.keys()
    Fixed(**data.hparams)  # what load_from_checkpoint does
