"""Shapes, starts and refusals of the plain ReLU networks."""

from typing import Any

import pytest
import torch
from torch import nn

from lightning_lift.modules import ReLUConvNet, ReLUMLP


def test_images_and_rows_give_the_same_scores() -> None:
    torch.manual_seed(0)
    for network, channels in ((ReLUMLP(192, 7, [9, 5]), 3), (ReLUConvNet(192, 7, 3, [4, 6], batch_norm=True), 3)):
        images = torch.randn(5, channels, 8, 8)
        assert network(images).shape == (5, 7)
        torch.testing.assert_close(network(images.flatten(1)), network(images))


def test_the_convolutional_net_has_no_dense_layer_and_takes_means() -> None:
    network = ReLUConvNet(784, widths=[4, 4, 4])
    assert not any(isinstance(module, nn.Linear) for module in network.modules())
    assert network.features(torch.randn(1, 1, 28, 28)).shape == (1, 4, 7, 7)


@pytest.mark.parametrize(
    "make", [lambda s: ReLUMLP(4, 3, [5], start_scale=s), lambda s: ReLUConvNet(4, 3, start_scale=s)]
)
def test_a_small_start_is_the_default_start_made_smaller(make: Any) -> None:
    torch.manual_seed(0)
    default = make(1.0)
    torch.manual_seed(0)
    small = make(0.1)
    for one, other in zip(default.parameters(), small.parameters(), strict=True):
        torch.testing.assert_close(0.1 * one, other)


def test_sizes_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="widths"):
        ReLUMLP(4, widths=[])
    with pytest.raises(ValueError, match="num_classes"):
        ReLUMLP(4, num_classes=0)
    with pytest.raises(ValueError, match="set channels"):
        ReLUConvNet(3072)
    with pytest.raises(ValueError, match="start_scale"):
        ReLUMLP(4, start_scale=0.0)
