"""Batches of inputs with labels: whole, paired, shuffled by the seed and the epoch alone."""

import pytest
import torch
from sklearn.datasets import make_moons

from lightning_lift.datamodules import TwoMoonsDataModule
from lightning_lift.datamodules.labelled import Labelled, LabelledDataModule, LabelledSource


class Bytes(LabelledDataModule):
    """Row i is full of i, with label i modulo 3, so that a mixed-up pair shows."""

    def __init__(self, batch_size: int = 4, data_seed: int = 0, rows: int = 10) -> None:
        super().__init__(dim=6, num_classes=3, name="bytes", batch_size=batch_size, data_seed=data_seed)
        self.rows = rows
        self.save_hyperparameters()

    def load(self) -> dict[str, Labelled]:
        inputs = torch.arange(self.rows, dtype=torch.uint8)[:, None, None].expand(-1, 2, 3).clone()
        self.location, self.scale = torch.tensor(1.0), torch.tensor(2.0)
        pair = inputs, torch.arange(self.rows) % 3
        return {"train": pair, "val": pair, "test": pair}


def test_batches_are_floats_in_training_units_with_their_own_labels() -> None:
    data = Bytes()
    seen = []
    for inputs, labels in data.train_dataloader():
        assert inputs.shape == (4, 2, 3)
        assert inputs.dtype == torch.float32
        assert labels.dtype == torch.int64
        rows = 2.0 * inputs[:, 0, 0] + 1.0
        assert torch.equal(rows.long() % 3, labels)
        seen += rows.long().tolist()
    assert len(set(seen)) == 8  # the incomplete last batch is left out
    assert seen != sorted(seen)
    order = torch.cat([2.0 * inputs[:, 0, 0] + 1.0 for inputs, _ in data.val_dataloader()])
    assert order.tolist() == list(range(10))
    whole, labels = data.split("test")
    assert torch.equal(whole[:, 0, 0], (torch.arange(10) - 1.0) / 2.0)
    assert labels.tolist() == [i % 3 for i in range(10)]


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    def epochs(seed: int) -> list[list[int]]:
        loader = Bytes(data_seed=seed).train_dataloader()
        return [[int(v) for inputs, _ in loader for v in inputs[:, 0, 0] * 2 + 1] for _ in range(2)]

    assert epochs(0) == epochs(0)
    assert epochs(0)[0] != epochs(0)[1]
    assert epochs(0) != epochs(1)


def test_a_loader_resumes_within_its_epoch() -> None:
    loader = Bytes().train_dataloader()
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    expected = next(iterator)
    other = Bytes().train_dataloader()
    other.load_state_dict(state)
    found = next(iter(other))
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


def test_a_source_copies() -> None:
    source = LabelledSource(torch.zeros(3, 2), torch.zeros(3), torch.zeros(()), torch.ones(()), 0, False)
    source.rows(0, 0, 3, 0, 3)[0].add_(1.0)
    assert float(source.rows(0, 0, 3, 0, 3)[0].sum()) == 0.0


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ({"train": (torch.zeros(4, 6), torch.zeros(4))}, r"no \['test', 'val'\]"),
        (dict.fromkeys(("train", "val", "test"), (torch.zeros(4, 5), torch.zeros(4))), "6 numbers"),
        (dict.fromkeys(("train", "val", "test"), (torch.zeros(4, 6), torch.zeros(3))), "labels"),
        (dict.fromkeys(("train", "val", "test"), (torch.zeros(4, 6), torch.full((4,), 3))), "expected 0 to 2"),
    ],
)
def test_splits_that_do_not_fit(splits: dict[str, Labelled], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bytes, "load", lambda self: splits)
    with pytest.raises(ValueError, match=message):
        Bytes().setup()


def test_two_moons_are_scikit_learns() -> None:
    data = TwoMoonsDataModule(num_train=50, num_val=20, num_test=20)
    inputs, labels = next(iter(data.train_dataloader()))
    assert inputs.shape == (50, 2)  # the whole set is one batch
    rows, classes = make_moons(50, noise=0.1, random_state=0)
    order = inputs[:, 0].argsort()
    reference = torch.tensor(rows, dtype=torch.float32)
    torch.testing.assert_close(inputs[order], reference[reference[:, 0].argsort()])
    assert torch.equal(labels[order], torch.tensor(classes)[reference[:, 0].argsort()])
    assert not torch.equal(data.split("val")[0], data.split("test")[0])
    with pytest.raises(ValueError, match="noise"):
        TwoMoonsDataModule(noise=-1.0)
