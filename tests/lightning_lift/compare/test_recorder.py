"""Hashes of start and data: equal where the start is one, and only there."""

import functools
from typing import Any

import pytest
import torch

from lightning_lift.compare.recorder import data_hash, start_hash
from lightning_lift.modules import LogConcaveEBM
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import DirectSoftplus, Lift, Parameterization, ProjectedGradient


def module(parameterization: Any = ProjectedGradient, seed: int = 0, **network: Any) -> LogConcaveEBM:
    torch.manual_seed(seed)
    return LogConcaveEBM(1, functools.partial(ICNN, widths=[5, 5], **network), parameterization)


ARMS = [
    ProjectedGradient,
    DirectSoftplus,
    functools.partial(DirectSoftplus, latent_gain=7.0),
    functools.partial(DirectSoftplus, readout="exp"),
    functools.partial(DirectSoftplus, readout="square"),
    Lift,
    functools.partial(Lift, emit="all", body_widths=[4, 4]),
]


@pytest.mark.parametrize("arm", ARMS)
def test_every_matched_start_has_the_networks_own_hash(arm: Any) -> None:
    assert start_hash(module(arm), module()) == start_hash(module(), module())


@pytest.mark.parametrize("arm", [DirectSoftplus, Lift])
def test_weights_below_the_floor_are_raised_to_it_and_still_count_as_the_start(arm: Any) -> None:
    tiny = {"weight_init": "constant", "weight_init_value": 0.0}
    assert start_hash(module(arm, **tiny), module(**tiny)) == start_hash(module(**tiny), module(**tiny))


@pytest.mark.parametrize("arm", [functools.partial(Lift, slack_start=-2.0), functools.partial(Lift, use_slack=False)])
def test_another_start_has_another_hash(arm: Any) -> None:
    own = start_hash(module(arm), module())
    assert own != start_hash(module(), module())
    assert own == start_hash(module(arm), module())


def test_one_changed_number_changes_the_hash() -> None:
    expected = start_hash(module(), module())
    assert start_hash(module(seed=1), module(seed=1)) != expected
    for name, _ in module(DirectSoftplus).named_parameters():
        changed = module(DirectSoftplus)
        with torch.no_grad():
            changed.get_parameter(name).view(-1)[0] += 1e-3
        assert start_hash(changed, module()) != expected, name


def test_a_module_is_left_as_it_was() -> None:
    watched = module(Lift).train()
    before = {name: tensor.clone() for name, tensor in watched.named_parameters()}
    state = torch.get_rng_state()
    start_hash(watched, module())
    assert watched.training and watched.parameterization.training and watched.parameterization.is_stale
    assert all(torch.equal(tensor, before[name]) for name, tensor in watched.named_parameters())
    parameterization: Parameterization = watched.parameterization
    assert parameterization.get_extra_state()["reference_summary"] is None
    torch.manual_seed(0)
    torch.set_rng_state(state)


def test_data_are_hashed_bit_by_bit() -> None:
    batch = torch.arange(6.0).view(3, 2)
    assert data_hash([batch]) == data_hash([batch.clone()])
    nearly = batch.clone()
    nearly[0, 0] = torch.nextafter(nearly[0, 0], torch.tensor(1.0))
    others = [[nearly], [batch, batch], [batch.view(2, 3)], [batch.double()], [(batch, torch.tensor(1))], []]
    assert len({data_hash(batches) for batches in [[batch], *others]}) == 7
