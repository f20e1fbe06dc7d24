import functools
import math
from typing import Any

import pytest
import torch

from lightning_lift.datamodules import GumbelDataModule
from lightning_lift.diagnostics.weight_spaces import NetworkSpace, TrainedSpace, evaluation_loss, network_weights
from lightning_lift.modules import ConvexPotentialFlow, LogConcaveEBM
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import DirectSoftplus, Lift, ProjectedGradient

LIFT = functools.partial(Lift, body_widths=(5, 4), slack_start=-1.0, slack_std=0.5)
ALL = functools.partial(LIFT, emit="all")
ROWS = GumbelDataModule(data_seed=1, num_val=100, batch_size=16)
ROWS.setup("fit")
BATCH = next(iter(ROWS.val_dataloader()))[:64]


def module(parameterization: Any, task: Any = LogConcaveEBM, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    made = task(1, functools.partial(ICNN, widths=[6, 5]), parameterization)
    for part in made.modules():
        if hasattr(part, "prepare"):
            part.prepare(made.support, ROWS.window)
    made.parameterization.calibrate([BATCH])
    return made


@pytest.mark.parametrize("task", [LogConcaveEBM, ConvexPotentialFlow])
@pytest.mark.parametrize("parameterization", [ProjectedGradient, DirectSoftplus, LIFT, ALL])
def test_network_space_gives_each_module_its_own_loss(parameterization: Any, task: Any) -> None:
    made = module(parameterization, task)
    expected = evaluation_loss(made, BATCH, strict=True)
    weights = network_weights(made)
    # Evaluated on a module of other numbers: only the vector decides.
    space = NetworkSpace(module(parameterization, task, seed=1), BATCH)
    vector = space.vector(weights)
    assert vector.numel() == sum(p.numel() for p in ICNN(1, [6, 5]).parameters()) + 2 * (task is ConvexPotentialFlow)
    space.loss(vector + 0.1)
    assert space.loss(vector, strict=True) == pytest.approx(expected, rel=1e-5)
    assert space.lowest(vector) == pytest.approx(
        min(float(weights[name].min()) for name in made.parameterization.names)
    )


def test_arms_share_the_network_space() -> None:
    spaces = [NetworkSpace(module(p), BATCH) for p in (ProjectedGradient, DirectSoftplus, LIFT, ALL)]
    vectors = [space.vector(network_weights(module(DirectSoftplus))) for space in spaces]
    losses = [space.loss(vector) for space, vector in zip(spaces, vectors, strict=True)]
    assert len(set(losses)) == 1


def test_negative_weights_are_evaluated_as_they_are() -> None:
    space = NetworkSpace(module(ProjectedGradient), BATCH)
    weights = network_weights(module(ProjectedGradient))
    name = "layers.1.hidden_weight"
    clamped = space.loss(space.vector(weights))
    weights[name] = weights[name].clone()
    weights[name][0, 0] = -0.2
    vector = space.vector(weights)
    assert space.lowest(vector) == pytest.approx(-0.2)
    assert space.loss(vector) != clamped


@pytest.mark.parametrize("parameterization", [ProjectedGradient, LIFT, ALL])
def test_trained_space_calibrates_at_every_point(parameterization: Any) -> None:
    other = module(parameterization, seed=2)
    expected = evaluation_loss(other, BATCH, strict=True)
    space = TrainedSpace(module(parameterization), BATCH, [BATCH])
    vector = space.vector(other.state_dict())
    assert sum(space.filter_sizes) == vector.numel() == sum(p.numel() for p in other.parameters())
    first = space.loss(vector + 0.3)
    assert space.loss(vector, strict=True) == expected
    assert space.loss(vector + 0.3) == first  # nothing of one evaluation is left in the next


def test_filters_of_the_slack_are_rows_of_what_it_stands_for() -> None:
    space = TrainedSpace(module(LIFT), BATCH, [BATCH])
    names = list(space.tensors)
    before = sum(space.tensors[name].numel() for name in names[: names.index("parameterization.slack")])
    sizes, total = list(space.filter_sizes), 0
    while total < before:
        total += sizes.pop(0)
    shapes = space.module.parameterization.shapes.values()
    assert sizes[:6] == [n for s in shapes for n in ([s[1]] * s[0] if len(s) == 2 else [s[0]])]


def test_evaluation_leaves_module_and_generators_alone() -> None:
    made = module(LIFT)
    made.train()
    window = made.partition.window.clone()
    state = torch.get_rng_state()
    first = evaluation_loss(made, BATCH)
    assert evaluation_loss(made, BATCH) == first
    assert made.training
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(made.partition.window, window)


def test_points_without_a_loss_are_nan_and_faults_are_raised_on_request() -> None:
    space = TrainedSpace(module(LIFT), BATCH, [BATCH])
    vector = space.vector(module(LIFT).state_dict())
    assert math.isnan(space.loss(torch.full_like(vector, math.inf)))
    with pytest.raises((ValueError, RuntimeError)):
        space.loss(torch.full_like(vector, math.nan), strict=True)
    with pytest.raises(ValueError, match="runs of one network"):
        space.vector(module(DirectSoftplus).state_dict())
