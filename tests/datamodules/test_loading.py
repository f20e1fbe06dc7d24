from itertools import chain

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import BatchSizeFinder

from lightning_lift.datamodules import TabularDataModule, loading
from lightning_lift.datamodules.loading import BatchLoader
from lightning_lift.datamodules.seeding import generator_at, stream_seed

ROWS = torch.arange(23.0)[:, None]


def normal(num_rows: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(num_rows, 2, generator=generator, dtype=torch.float64)


def shuffled(batch_size: int = 4, **kwargs: object) -> BatchLoader:
    return BatchLoader.fixed(ROWS, batch_size, base_seed=5, shuffle=True, drop_last=True, **kwargs)  # type: ignore[arg-type]


def streamed(batch_size: int = 4, num_batches: int = 5) -> BatchLoader:
    return BatchLoader.stream(normal, batch_size, num_batches, base_seed=7)


def place(monkeypatch: pytest.MonkeyPatch, rank: int, world: int) -> None:
    monkeypatch.setattr(loading, "rank_and_world_size", lambda: (rank, world))


@pytest.mark.parametrize("make", [shuffled, streamed])
def test_epochs_differ_and_are_reproducible(make) -> None:
    first, second = make(), make()
    epochs = [list(first), list(first)]
    again = [list(second), list(second)]
    assert len(epochs[0]) == len(first) == 5
    assert all(batch.dtype == torch.float32 and batch.shape[0] == 4 for batch in epochs[0])
    assert all(torch.equal(a, b) for a, b in zip(chain(*epochs), chain(*again), strict=True))
    assert not torch.equal(epochs[0][0], epochs[1][0])


def test_shuffled_epoch_serves_distinct_rows_and_drops_the_last_incomplete_batch() -> None:
    values = torch.cat(list(shuffled())).flatten().tolist()
    assert len(values) == 20 and len(set(values)) == 20 and set(values) <= set(range(23))


def test_in_order_serves_every_row_once_and_hands_out_copies() -> None:
    loader = BatchLoader.fixed(ROWS, 4)
    batches = list(loader)
    assert [len(batch) for batch in batches] == [4, 4, 4, 4, 4, 3] and len(loader) == 6
    assert torch.equal(torch.cat(batches), ROWS)
    batches[0].zero_()
    assert torch.equal(torch.cat(list(loader)), ROWS)


@pytest.mark.parametrize("make", [shuffled, streamed])
@pytest.mark.parametrize("served", [1, 3, 5])
def test_state_round_trip_serves_the_remaining_batches(make, served: int) -> None:
    loader = make()
    list(loader)  # an epoch before, so that the state is not all zeros
    iterator = iter(loader)
    for _ in range(served):
        next(iterator)
    state = loader.state_dict()
    rest, following = list(iterator), list(loader)
    resumed = make()
    resumed.load_state_dict(state)
    iter(resumed)  # Lightning makes iterators that it does not use
    got = list(resumed)
    assert len(resumed) == 5  # of the whole epoch
    assert len(got) == 5 - served and all(torch.equal(a, b) for a, b in zip(got, rest, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(list(resumed), following, strict=True))


def test_state_is_plain() -> None:
    state = shuffled().state_dict()
    assert state == {"epoch": 0, "served": 0, "global_batch_size": 4} and all(type(v) is int for v in state.values())


def test_set_epoch_after_the_iterator_was_made_still_counts() -> None:
    loader, reference = shuffled(), shuffled()
    list(reference), list(reference)
    iterator = iter(loader)
    loader.batch_sampler.sampler.set_epoch(2)
    assert all(torch.equal(a, b) for a, b in zip(list(iterator), list(reference), strict=True))


def test_leaving_an_epoch_early_starts_the_next_one_afresh() -> None:
    loader, reference = streamed(), streamed()
    next(iter(loader))
    list(reference)
    assert all(torch.equal(a, b) for a, b in zip(list(loader), list(reference), strict=True))


def test_any_batch_can_be_made_without_the_earlier_ones() -> None:
    third = list(streamed())[3]
    assert torch.equal(third, normal(4, generator_at(7, 3)).float())


def test_no_two_batches_of_a_long_stream_share_a_seed_and_streams_differ() -> None:
    assert len({generator_at(2**32 - 500, i).initial_seed() for i in range(1000)}) == 1000
    seeds = {stream_seed(s, p) for s in range(200) for p in ("train", "val", "test", "calibration", "probe", "split")}
    assert len(seeds) == 1200


def test_same_every_epoch() -> None:
    loader = shuffled(same_every_epoch=True)
    assert all(torch.equal(a, b) for a, b in zip(list(loader), list(loader), strict=True))


@pytest.mark.parametrize("make", [shuffled, streamed])
@pytest.mark.parametrize("world", [2, 3])
def test_processes_see_the_rows_of_one_process_with_the_joined_batch(make, world: int, monkeypatch) -> None:
    num = 23 // (2 * world) if make is shuffled else 5
    joined = list(make(2 * world))
    assert len(joined) == num
    parts = []
    for rank in range(world):
        place(monkeypatch, rank, world)
        loader = make(2)
        assert len(loader) == num
        parts.append(list(loader))
    for index, whole in enumerate(joined):
        assert torch.equal(torch.cat([part[index] for part in parts]), whole)


@pytest.mark.parametrize("num_rows", [3, 5, 12, 13, 14, 23])
def test_evaluation_shards_cover_every_row_once(num_rows: int, monkeypatch) -> None:
    world, seen = 3, {}
    for rank in range(world):
        place(monkeypatch, rank, world)
        loader = BatchLoader.fixed(ROWS[:num_rows], 4)
        batches = list(loader)
        assert len(batches) == len(loader) >= 1
        for index, batch in enumerate(batches):
            start, stop = loader.row_range(index)
            assert 1 <= len(batch) <= 4 and torch.equal(batch, ROWS[start:stop])
            seen.update({row: seen.get(row, 0) + 1 for row in range(start, stop)})
    assert seen == dict.fromkeys(range(num_rows), 1)


def test_unsharded_loader_serves_all_rows_in_every_process(monkeypatch) -> None:
    place(monkeypatch, 1, 2)
    assert torch.equal(torch.cat(list(BatchLoader.fixed(ROWS, 4, shard=False))), ROWS)


def test_too_few_rows_names_the_numbers(monkeypatch) -> None:
    place(monkeypatch, 0, 4)
    with pytest.raises(ValueError, match=r"mine: 23 rows .* 32 rows \(4 process\(es\) with batch_size 8\).*at most 5"):
        len(shuffled(8, label="mine"))
    with pytest.raises(ValueError, match="3 rows are fewer than the 4 processes"):
        len(BatchLoader.fixed(ROWS[:3], 2))


@pytest.mark.parametrize(("batch_size", "num_batches"), [(0, 1), (1, 0)])
def test_bad_sizes(batch_size: int, num_batches: int) -> None:
    with pytest.raises(ValueError, match="must be at least 1, got 0"):
        BatchLoader.stream(normal, batch_size, num_batches)


def test_resuming_within_an_epoch_with_another_global_batch_warns(monkeypatch) -> None:
    loader = streamed()
    next(iter(loader))
    state = loader.state_dict()
    place(monkeypatch, 0, 2)
    with pytest.warns(UserWarning, match="batches of 4 rows over all processes, now 8"):
        streamed().load_state_dict(state)


def test_a_loader_is_no_torch_loader_and_touches_no_global_state() -> None:
    assert not isinstance(shuffled(), torch.utils.data.DataLoader)
    before = torch.get_rng_state()
    list(shuffled()), list(streamed())
    assert torch.equal(before, torch.get_rng_state())


class Sizes(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.nn.Parameter(torch.zeros(1))
        self.seen: list[torch.Tensor] = []

    def training_step(self, batch, batch_idx):
        self.seen.append(batch)
        return (batch - self.mean).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize("mode", ["power", "binsearch"])
def test_lightnings_batch_size_finder_ends_at_the_size_of_the_table(tmp_path, mode: str) -> None:
    """The runs of the search leave the order of the training rows alone."""
    data = TabularDataModule(table="load_iris", batch_size=16)  # 120 training rows
    module, finder = Sizes(), BatchSizeFinder(mode=mode, steps_per_trial=1, init_val=64)
    lightning.Trainer(
        accelerator="cpu",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[finder],
        default_root_dir=tmp_path,
    ).fit(module, datamodule=data)
    assert data.batch_size == finder.optimal_batch_size == {"power": 120, "binsearch": 114}[mode]
    expected = list(TabularDataModule(table="load_iris", batch_size=data.batch_size).train_dataloader())
    assert torch.equal(module.seen[-2 * len(expected)], expected[0])


def test_a_batch_size_above_the_rows_that_are_known_is_lowered() -> None:
    data = TabularDataModule(table="load_iris", batch_size=500)
    with pytest.raises(ValueError, match="at most 120"):
        data.train_dataloader()
    with pytest.warns(UserWarning, match=r"iris: batch_size 300 becomes 120"):
        data.batch_size = 300
    assert len(data.train_dataloader()) == 1
    assert len(torch.cat(list(data.predict_dataloader()))) == 15
