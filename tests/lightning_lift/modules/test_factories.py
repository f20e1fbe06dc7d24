import functools

import pytest
import torch

from lightning_lift.modules.factories import factory, plain
from lightning_lift.networks import ICNN, ConvexNetwork
from lightning_lift.parameterizations import DirectSoftplus, Parameterization


def test_plain_and_back() -> None:
    stored = plain("network", functools.partial(ICNN, widths=(4, 2)))
    assert stored["class_path"] == "lightning_lift.networks.icnn.ICNN"
    assert stored["init_args"]["widths"] == [4, 2]
    assert stored["init_args"]["strong_convexity"] == "learned_gain", "defaults are stored too"
    assert len(factory("network", stored, ConvexNetwork)(3).layers) == 2
    assert factory("optimizer", plain("optimizer", torch.optim.Adam), torch.optim.Optimizer).func is torch.optim.Adam
    assert factory("parameterization", DirectSoftplus, Parameterization) is DirectSoftplus


@pytest.mark.parametrize("value", [1, 1.5, "a", None, True, [1, [2.0]], {"a": {"b": 1}}])
def test_plain_values_stay(value: object) -> None:
    assert plain("x", value) == value


class Outer:
    class Nested:
        pass


def local_class() -> type:
    class Local:
        pass

    return Local


@pytest.mark.parametrize(
    "value",
    [
        lambda: None,
        print,
        torch.zeros(1),
        functools.partial(ICNN, 3),
        functools.partial(print),
        Outer.Nested,
        local_class(),
    ],
    ids=["lambda", "function", "tensor", "positional", "partial of a function", "nested", "local"],
)
def test_what_a_checkpoint_cannot_store_is_refused_by_name(value: object) -> None:
    with pytest.raises(TypeError, match="network="):
        plain("network", value)


def test_nested_values_are_refused_by_their_path() -> None:
    with pytest.raises(TypeError, match=r"network.*readouts\[1\]"):
        plain("network", functools.partial(ICNN, readouts=[1, print]))


def test_a_class_that_cannot_be_imported_is_named() -> None:
    with pytest.raises(ValueError, match="no_such_package"):
        factory("network", {"class_path": "no_such_package.Net"}, ConvexNetwork)
