"""Recording a forward pass leaves the model alone, and refuses what is no fixed graph."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lightning_lift.rescaling import UntraceableModelError
from lightning_lift.rescaling.tracing import bind_example, trace_model
from tests.lightning_lift.rescaling.rescaling_networks import build


class _Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor, flag: bool = False) -> Tensor:
        return self.layer(x) if flag or bool((x > 0).all()) else x


def test_control_flow_on_values_is_refused() -> None:
    with pytest.raises(UntraceableModelError, match="control flow on the values"):
        trace_model(_Branches(), torch.ones(1, 2))


def test_arguments_of_other_types_are_constants() -> None:
    assert len(trace_model(_Branches(), (torch.ones(1, 2), True))) == 1
    assert len(trace_model(_Branches(), {"x": torch.ones(1, 2), "flag": True})) == 1


def test_an_example_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match="does not fit _Branches"):
        bind_example(_Branches(), (torch.ones(1), True, 3))
    with pytest.raises(UntraceableModelError, match="could not be traced"):
        trace_model(nn.Linear(2, 2), torch.ones(1, 3))


@pytest.mark.parametrize("training", [True, False])
def test_model_modes_buffers_and_generator_stay(training: bool) -> None:
    model, x = build("convolutional")
    model.train(training)
    model.norm2.eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    state = torch.get_rng_state()
    keys = set(model.__dict__)
    trace_model(model, x)
    assert set(model.__dict__) == keys
    assert [m.training for m in (model, model.norm1, model.norm2)] == [training, training, False]
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_functional_batch_norm_on_one_row() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 3)
            self.register_buffer("mean", torch.zeros(3))
            self.register_buffer("var", torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.batch_norm(self.layer(x), self.mean, self.var, training=self.training)

    assert len(trace_model(Net(), torch.ones(4, 2))) == 1
