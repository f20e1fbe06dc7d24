import math

import numpy as np
import pytest
import torch
from scipy.stats import CensoredData, ecdf
from torch import Tensor

from lightning_lift.diagnostics import VisitCounter


def feed(history: Tensor, every: int = 1) -> VisitCounter:
    """A counter that has seen each row of a history (looks, d)."""
    counter = VisitCounter()
    for index, row in enumerate(history):
        counter.update(row, index * every)
    return counter


def by_hand(history: Tensor, every: int = 1) -> tuple[list[int], list[int]]:
    """Lengths of ended and of censored visits, weight by weight."""
    ended, censored = [], []
    for column in history.T.tolist():
        start = None
        for look, inside in enumerate(column):
            if inside and (look == 0 or not column[look - 1]):
                start = look
            if not inside and look and column[look - 1] and start:
                ended.append((look - start) * every)
        if column[-1] and start and start < len(column) - 1:
            censored.append((len(column) - 1 - start) * every)
    return ended, censored


def random_history(looks: int, weights: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    walk = torch.randn(looks, weights, generator=generator).cumsum(0)
    return walk < 0.5


def test_one_history_of_each_kind() -> None:
    columns = {
        "never": [0, 0, 0, 0, 0, 0],
        "always": [1, 1, 1, 1, 1, 1],  # left-truncated, dropped
        "leaves": [1, 1, 0, 0, 0, 0],  # left-truncated, dropped, but it has left
        "visit": [0, 1, 1, 0, 0, 0],  # ended after 2 looks
        "absorbed": [0, 0, 1, 1, 1, 1],  # censored after 3 looks
        "again": [1, 0, 1, 0, 0, 1],  # dropped, then ended after 1, then new: seen for no time
    }
    summary = feed(torch.tensor(list(columns.values())).T, every=10).summary()
    curve = summary.survival
    assert curve.times.tolist() == [10.0, 20.0, 30.0]
    assert curve.ended.tolist() == [1, 1, 0]
    assert curve.censored.tolist() == [0, 0, 1]
    assert curve.survival.tolist() == pytest.approx([2 / 3, 1 / 3, 1 / 3])
    assert summary.dropped == 3
    assert (summary.entries, summary.exits) == (4, 4)
    assert summary.occupancy == pytest.approx(3 / 6)
    assert summary.ever_inside == pytest.approx(5 / 6)
    assert summary.ever_left == pytest.approx(3 / 5)
    assert summary.absorbed == pytest.approx(2 / 6), "what has just come in is not absorbed"
    # Weight-steps inside before each look: 5 + 2 + 2 + 3 + 2 intervals of 10.
    assert summary.exit_rate == pytest.approx(4 / 140)
    assert summary.entry_rate == pytest.approx(4 / (300 - 140))


@pytest.mark.parametrize("seed", range(4))
def test_streaming_equals_the_visits_of_each_weight(seed: int) -> None:
    history = random_history(40, 60, seed)
    summary = feed(history, every=5).summary()
    ended, censored = by_hand(history, 5)
    reference = ecdf(CensoredData(uncensored=np.array(ended, float), right=np.array(censored, float))).sf
    curve = summary.survival
    np.testing.assert_allclose(curve.survival.numpy(), reference.evaluate(curve.times.numpy()), atol=1e-12)
    assert int(summary.survival.ended.sum()) == len(ended)
    assert int(summary.survival.censored.sum()) == len(censored)
    moved = history.int().diff(dim=0)
    assert summary.entries == int((moved == 1).sum())
    assert summary.exits == int((moved == -1).sum())
    assert summary.ever_left == pytest.approx(((moved == -1).any(0).sum() / history.any(0).sum()).item())


def test_absorbed_for_so_many_steps() -> None:
    history = random_history(30, 80, 1)
    counter = feed(history, every=10)
    stays = torch.tensor([next((k for k, inside in enumerate(c[::-1]) if not inside), 30) for c in history.T.tolist()])
    for steps in (10, 50, 200):
        expected = ((stays - 1) * 10 >= steps).double().mean().item()
        assert counter.summary(steps).absorbed == pytest.approx(expected)
    assert counter.summary(0).absorbed == counter.summary().occupancy


def test_a_geometric_stay_has_its_survival() -> None:
    # Each weight leaves with probability 0.2 and enters with 0.1 a look: S(k) = 0.8^k, rates 0.2 and 0.1.
    generator = torch.Generator().manual_seed(0)
    state = torch.zeros(4000, dtype=torch.bool)
    counter = VisitCounter()
    for look in range(60):
        counter.update(state, look)
        draw = torch.rand(4000, generator=generator)
        state = torch.where(state, draw >= 0.2, draw < 0.1)
    summary = counter.summary()
    curve = summary.survival
    for k in (1, 3, 10):
        index = curve.times.tolist().index(float(k))
        assert curve.survival[index].item() == pytest.approx(0.8**k, abs=4.0 * curve.error[index].item())
    assert summary.exit_rate == pytest.approx(0.2, abs=4.0 * 0.4 / math.sqrt(summary.exits / 0.2))
    assert summary.entry_rate == pytest.approx(0.1, abs=4.0 * 0.3 / math.sqrt(summary.entries / 0.1))


def test_a_resume_goes_on_exactly(tmp_path: object) -> None:
    history = random_history(24, 30, 2)
    whole = feed(history)
    first = feed(history[:11])
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second = VisitCounter()
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for index in range(11, 24):
        second.update(history[index], index)
    a, b = whole.state_dict(), second.state_dict()
    assert a.keys() == b.keys()
    assert all(torch.equal(a[k], b[k]) if torch.is_tensor(a[k]) else a[k] == b[k] for k in a)
    assert whole.summary().scalars() == pytest.approx(second.summary().scalars(), nan_ok=True)


def test_memory_does_not_grow_with_visits() -> None:
    history = random_history(200, 50, 3)
    counter = feed(history)
    assert counter.summary().exits > 200
    assert len(counter.state_dict()["ended"]) < 200


def test_the_mask_is_copied() -> None:
    mask = torch.zeros(4, dtype=torch.bool)
    counter = VisitCounter()
    counter.update(mask, 0)
    mask[:] = True
    counter.update(mask, 1)
    assert counter.summary().entries == 4
    assert counter.summary().ever_inside == 1.0


def test_bad_use_is_refused() -> None:
    counter = VisitCounter()
    with pytest.raises(RuntimeError, match="no look"):
        counter.summary()
    with pytest.raises(ValueError, match="one flag a weight"):
        counter.update(torch.zeros(2, 2, dtype=torch.bool), 0)
    counter.update(torch.zeros(3, dtype=torch.bool), 5)
    with pytest.raises(ValueError, match="not later"):
        counter.update(torch.zeros(3, dtype=torch.bool), 5)
    with pytest.raises(ValueError, match=r"had \(3,\)"):
        counter.update(torch.zeros(4, dtype=torch.bool), 6)
    nothing = counter.summary()
    assert math.isnan(nothing.ever_left)
    assert math.isnan(nothing.exit_rate)
