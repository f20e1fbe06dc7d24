"""Windows side by side move exactly as each quadrature moves by itself."""

import math

import pytest
import torch

from lightning_lift.compare.windows import StackedWindows
from lightning_lift.partition import Quadrature
from lightning_lift.potential import Potential
from tests.problems import GumbelEnergy, Quadratic, potential_of

# One row a seed: mean and standard deviation, step after step.
PATHS = [
    [(0.0, 1.0), (0.1, 1.0), (30.0, 1.0), (30.0, 0.05)],
    [(0.0, 1.0), (0.0, 0.5), (0.0, 0.2), (0.0, 0.1)],
    [(-5.0, 3.0), (-5.0, 3.0), (-5.0, 3.0), (-5.0, 3.0)],
    [(2.0, 0.01), (2.0, 20.0), (-2.0, 20.0), (0.0, 1.0)],
]


def quadrature(dim: int) -> Quadrature:
    made = Quadrature(num_points=201 if dim == 1 else 33)
    made.prepare(torch.tensor([[-math.inf] * dim, [math.inf] * dim]), None)
    return made


def step(windows: StackedWindows, potentials: list[Potential], alive: list[bool]) -> int:
    """Follows until no window moves; returns the rounds in which some did."""
    seeds = list(range(len(potentials)))
    for attempt in range(windows.max_moves):
        energies = torch.stack([potentials[s].value(windows.points[s]) for s in seeds]).detach()
        masses = torch.logsumexp(windows.log_weights[seeds] - energies, 1)
        on_rays = []
        if windows.rays is not None:
            pairs = [potentials[s].value_gradient(windows.rays[s]) for s in seeds]
            on_rays = [torch.stack(parts).detach() for parts in zip(*pairs, strict=True)]
        moved = windows.follow(seeds, energies, masses, on_rays, alive)
        if not moved:
            return attempt
        seeds = moved
    raise AssertionError("no end")


@pytest.mark.parametrize("energy", [Quadratic, GumbelEnergy])
@pytest.mark.parametrize("dim", [1, 2])
def test_each_window_moves_as_it_would_alone(dim: int, energy: type) -> None:
    together, alone = [quadrature(dim) for _ in PATHS], [quadrature(dim) for _ in PATHS]
    windows = StackedWindows(together, dim, torch.zeros(()))
    rounds = 0
    for places in zip(*PATHS, strict=True):
        potentials = [potential_of(energy(dim, *place)) for place in places]
        rounds += step(windows, potentials, [True] * len(PATHS))
        for ours, theirs, potential in zip(together, alone, potentials, strict=True):
            theirs(potential)
            assert torch.equal(ours.window, theirs.window)
    assert rounds >= 3


def test_a_dead_seeds_window_stays() -> None:
    together = [quadrature(1), quadrature(1)]
    windows = StackedWindows(together, 1, torch.zeros(()))
    before = together[1].window.clone()
    step(windows, [potential_of(Quadratic(1, 50.0, 0.1))] * 2, [True, False])
    assert torch.equal(together[1].window, before)
    assert not torch.equal(together[0].window, before)
    assert windows.quadratures[1].window is together[1].window


def test_a_closed_support_never_moves() -> None:
    made = Quadrature(num_points=51)
    made.prepare(torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [1.0]]))
    windows = StackedWindows([made], 1, torch.zeros(()))
    assert step(windows, [potential_of(Quadratic(1, 50.0, 0.1))], [True]) == 0
