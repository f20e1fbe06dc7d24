"""Frozen models: ordinary modules with constant weights, without the parameterization that trained them."""

import copy

import torch
from torch import Tensor, nn

from lightning_lift.networks.base import check_points
from lightning_lift.partition.base import Partition
from lightning_lift.potential import Potential


def within(x: Tensor, support: Tensor) -> Tensor:
    """Which points lie in a closed box, shape (N,), bool.

    Args:
        x: points, shape (N, D).
        support: low and high row, shape (2, D), infinite where open.
    """
    return ((x >= support[0]) & (x <= support[1])).all(1)


class FrozenEnergy(nn.Module):
    """A convex network with its weights in place, as buffers.

    Args:
        potential: copied; nothing is shared with the model it came from.
    """

    def __init__(self, potential: Potential) -> None:
        super().__init__()
        self.network = copy.deepcopy(potential.network)
        own = dict(self.network.named_parameters())
        constants = {**own, **potential.weights}
        for name, tensor in constants.items():
            owner, _, leaf = name.rpartition(".")
            module = self.network.get_submodule(owner)
            module._parameters.pop(leaf, None)
            module.register_buffer(leaf, tensor.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """E(x): shape (N, D) to (N,)."""
        energy: Tensor = self.network(x)
        return energy

    def potential(self) -> Potential:
        """The network as a potential, for derivatives."""
        buffers = dict(self.network.named_buffers())
        return Potential(self.network, {name: buffers[name] for name in self.network.nonnegative_names()})


class FrozenDensity(nn.Module):
    """A log-concave density with constant weights, in original units.

    Args:
        energy: in training units.
        log_partition: log Z in training units, a 0-d tensor.
        location: shape (D,); original = location + scale * training.
        scale: shape (D,).
        support: low and high row in training units, shape (2, D), infinite where open.
        partition: the estimator that made log Z; it draws the samples.
    """

    log_partition: Tensor
    location: Tensor
    scale: Tensor
    support: Tensor

    def __init__(
        self,
        energy: FrozenEnergy,
        log_partition: Tensor,
        location: Tensor,
        scale: Tensor,
        support: Tensor,
        partition: Partition,
    ) -> None:
        super().__init__()
        self.energy = energy
        self._partition = (copy.deepcopy(partition),)  # in a tuple: torch.export shall not trace it
        device = log_partition.device
        for name, tensor in (
            ("log_partition", log_partition),
            ("location", location),
            ("scale", scale),
            ("support", support),
        ):
            self.register_buffer(name, tensor.detach().clone().to(device))
        self.eval()

    @property
    def dim(self) -> int:
        """Dimension D."""
        return self.location.shape[0]

    def forward(self, x: Tensor) -> Tensor:
        """``log_prob``: what ``torch.export`` exports."""
        return self.log_prob(x)

    def log_prob(self, x: Tensor) -> Tensor:
        """Log-density in original units, -inf outside the support.

        Args:
            x: points in original units, shape (N, D), float32 or float64.

        Returns:
            Shape (N,), nats, in the precision of the weights.
        """
        check_points(x, self.dim)
        # Standardised in the precision of the rows, evaluated in that of the weights.
        standard = ((x - self.location) / self.scale).to(self.log_partition.dtype)
        log_prob = -self.energy(standard) - self.log_partition - self.scale.log().sum()
        return torch.where(within(standard, self.support), log_prob, -torch.inf)

    @torch.no_grad()
    def sample(self, num_samples: int, seed: int = 0) -> Tensor:
        """Independent draws in original units.

        Args:
            num_samples: how many, n.
            seed: of the draws' own generator.

        Returns:
            Shape (n, D).

        Raises:
            ValueError: ``num_samples`` is below 1.
        """
        if num_samples < 1:
            raise ValueError(f"num_samples={num_samples}: ask for at least one draw.")
        draws = self._partition[0].sample(self.energy.potential(), num_samples, seed)
        return self.location + self.scale * draws
