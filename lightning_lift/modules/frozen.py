"""Frozen models: ordinary modules with constant weights, without the parameterization that trained them."""

import copy
import warnings
from abc import ABC
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lightning_lift.datamodules.units import Units
from lightning_lift.flows.logdet import LogDet
from lightning_lift.flows.regression import Residual
from lightning_lift.flows.transform import FlowMap, FlowStage, PlainLogDet, all_points, standard_normal_log_prob
from lightning_lift.modules.original_units import ConditionalUnits, OriginalUnits, TrainingUnits
from lightning_lift.networks.actnorm import Normalization
from lightning_lift.partition.base import Partition
from lightning_lift.potential import Potential
from lightning_lift.programs.function import ConvexFunction, convex_function

_DRAWS_AT_ONCE = 1 << 15  # each with the scales and shifts that its context gives
_FAR = 1e4  # |location| / scale beyond which float32 cannot tell rows a thousandth of their spread apart


def inside_only(log_prob: Tensor, x: Tensor, support: Tensor) -> Tensor:
    """Log-densities with -inf outside a closed box; NaN where a point is NaN and not outside otherwise.

    Args:
        log_prob: shape (N,).
        x: their points, shape (N, D).
        support: low and high row, shape (2, D), infinite where open.
    """
    return torch.where(((x < support[0]) | (x > support[1])).any(1), -torch.inf, log_prob)


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

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """E(x), at a context where the network takes one: shape (N, D) to (N,)."""
        energy: Tensor = self.network(x) if context is None else self.network(x, context=context)
        return energy

    def potential(self) -> Potential:
        """The network as a potential, for derivatives."""
        buffers = dict(self.network.named_buffers())
        return Potential(self.network, {name: buffers[name] for name in self.network.nonnegative_names()})

    def convex_function(self) -> ConvexFunction:
        """E, for programs."""
        return convex_function(self.potential())


class FrozenUnits(TrainingUnits, nn.Module, ABC):
    """A model with constant weights.

    Rows are brought into training units in float64, and draws leave them in float64, where the device has it: in
    float32 a mean of 1e9 with a standard deviation of 1 is one number.

    Args:
        location: shape (D,); original = location + scale * training, or location + scale @ training with a matrix.
        scale: shape (D,) or (D, D).
        like: a tensor of the weights: gives the precision and the device.
    """

    def __init__(self, location: Tensor, scale: Tensor, like: Tensor) -> None:
        super().__init__()
        self.dim, self._dtype = location.shape[0], like.dtype
        for name, tensor in (("location", location.double()), ("scale", scale.double())):
            self.register_buffer(name, tensor.detach().clone())
        self.to(like.device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """What ``to`` does; location and scale become float32 where the device has no float64."""
        try:
            fn(torch.empty(0, dtype=torch.float64))
        except TypeError:
            ratio = float((self.location.abs() / self._units(self.location).spread).max())
            self.location, self.scale = self.location.float(), self.scale.float()
            if ratio > _FAR:
                warnings.warn(
                    f"a column has a mean {ratio:.2g} times its standard deviation, and this device has no float64: "
                    "log_prob and sample lose their last digits; keep the frozen model on the CPU, or subtract the "
                    "mean from the data.",
                    stacklevel=3,
                )
        self._dtype = fn(torch.empty(0, dtype=self._dtype)).dtype
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    def _like_weights(self, x: Tensor) -> Tensor:
        return x.to(self._dtype)


class FrozenDistribution(OriginalUnits, FrozenUnits, ABC):
    """A density of rows with constant weights.

    Subclass requirements: ``log_prob_scaled`` and ``sample_scaled``, in training units.
    """

    def forward(self, x: Tensor) -> Tensor:
        """``log_prob``: what ``torch.export`` exports."""
        return self.log_prob(x)


class FrozenDensity(FrozenDistribution):
    """A log-concave density exp(-E) / Z with constant weights.

    Args:
        energy: in training units.
        log_partition: log Z in training units, a 0-d tensor.
        location: shape (D,); original = location + scale * training.
        scale: shape (D,).
        support: low and high row in training units, shape (2, D), infinite where open.
        partition: the estimator that made log Z; it draws the samples.
    """

    log_partition: Tensor
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
        super().__init__(location, scale, log_partition)
        self.energy = energy
        self._partition = (copy.deepcopy(partition),)  # in a tuple: torch.export shall not trace it
        self.register_buffer("log_partition", log_partition.detach().clone())
        self.register_buffer("support", support.detach().clone().to(log_partition.device))
        self.eval()

    def log_prob_scaled(self, x: Tensor) -> Tensor:
        """-E(x) - log Z in training units, -inf outside the support: shape (N, D) to (N,)."""
        return inside_only(-self.energy(x) - self.log_partition, x, self.support)

    def convex_function(self) -> ConvexFunction:
        """The log-density in original units, concave, for programs."""
        location, scale = self.location.cpu().double(), self.scale.cpu().double()
        units = Units(location, scale)
        offset = -float(self.log_partition) - float(units.log_det)
        return ConvexFunction(self.energy.potential(), units, -1.0, offset, self.support.cpu())

    def sample_scaled(self, num_samples: int, generator: torch.Generator) -> Tensor:
        """The estimator's draws in training units, shape (n, D)."""
        return self._partition[0].sample(self.energy.potential(), num_samples, generator)


class FrozenMap(FrozenUnits):
    """The map of a flow of convex potentials with constant weights.

    Args:
        flow: the map from training units to noise; copied.
        location: shape (D,); original = location + scale * training.
        scale: shape (D,).
        logdet: how the log-determinant is computed; under ``torch.export`` it is exact.
    """

    def __init__(self, flow: FlowMap, location: Tensor, scale: Tensor, logdet: LogDet) -> None:
        super().__init__(location, scale, next(iter(flow.stages[0].potential.weights.values())))
        self.energies = nn.ModuleList(FrozenEnergy(stage.potential) for stage in flow.stages)
        for index, stage in enumerate(flow.stages):
            for own in (stage.normalization, stage.residual):
                for name, tensor in () if own is None else own._asdict().items():
                    self.register_buffer(f"{name}_{index}", tensor.detach().clone())
        self.tolerance = flow.tolerance
        self._logdet = (copy.deepcopy(logdet).eval(),)  # in a tuple: it has a generator, and no part in the weights
        self.eval()

    def flow_map(self) -> FlowMap:
        """The map from training units to noise."""
        stages = []
        for index, energy in enumerate(self.energies):
            assert isinstance(energy, FrozenEnergy)
            found: list[Any] = []
            for kind in (Normalization, Residual):
                own: list[Any] = [getattr(self, f"{name}_{index}", None) for name in kind._fields]
                found.append(None if own[0] is None else kind(*own))
            stages.append(FlowStage(energy.potential(), *found))
        return FlowMap(stages, self.tolerance)

    def _score(self, flow: FlowMap, x: Tensor) -> Tensor:
        """log N(f(x); 0, I) + log det Df(x)."""
        logdet = PlainLogDet() if torch.compiler.is_exporting() else self._logdet[0]
        result = flow.estimate(x, logdet)
        return standard_normal_log_prob(result.gradient) + result.logdet


class FrozenFlow(FrozenMap, FrozenDistribution):
    """A convex potential flow with constant weights."""

    def log_prob_scaled(self, x: Tensor) -> Tensor:
        """log N(f(x); 0, I) + log det Df(x) in training units, shape (N, D) to (N,)."""
        return self._score(self.flow_map(), x)

    def sample_scaled(self, num_samples: int, generator: torch.Generator) -> Tensor:
        """Noise through the inverse map, in training units, shape (n, D).

        Raises:
            RuntimeError: points whose inverse is not found.
        """
        noise = torch.randn(num_samples, self.dim, generator=generator)
        return all_points(self.flow_map().inverse(noise.to(self.location.device, self._dtype)))


class FrozenConditional(ConditionalUnits, FrozenUnits, ABC):
    """A conditional density with constant weights.

    Subclass requirements: ``log_prob_scaled`` and ``sample_scaled``; the constructor calls ``keep_units``.
    """

    context_location: Tensor
    context_scale: Tensor

    def keep_units(self, context_units: Units | None, support: Tensor) -> None:
        """Keep what belongs to the data as buffers.

        Args:
            context_units: of the context; None where training units are the original ones.
            support: low and high row in training units, shape (2, D), infinite where open.
        """
        self._has_context_units = context_units is not None
        named = {} if context_units is None else context_units._asdict()
        for name, tensor in {"support": support, **{f"context_{key}": part for key, part in named.items()}}.items():
            self.register_buffer(name, tensor.detach().clone().to(self.location.device))

    def context_units(self) -> Units | None:
        """Those that the weights were fitted in."""
        return Units(self.context_location, self.context_scale) if self._has_context_units else None

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        """``log_prob``: what ``torch.export`` exports."""
        return self.log_prob(x, context)


class FrozenConditionalFlow(FrozenConditional, FrozenMap):
    """A conditional convex flow with constant weights; its map is at no context yet."""

    def log_prob_scaled(self, x: Tensor, context: Tensor) -> Tensor:
        """The log-density in training units, shape (N, D) to (N,), at contexts (N, ...) or (1, ...)."""
        return self._score(self.flow_map().at(context), x)

    def sample_scaled(self, num_samples: int, context: Tensor, generator: torch.Generator) -> Tensor:
        """Noise through the inverse map, in training units, at contexts (B, ...): shape (n, B, D).

        Raises:
            RuntimeError: points whose inverse is not found.
        """
        like = torch.empty(0, dtype=self._dtype, device=self.location.device)
        return draws_at(self.flow_map().at(context), num_samples, len(context), generator, like)


def draws_at(flow: FlowMap, num_samples: int, num_contexts: int, generator: torch.Generator, like: Tensor) -> Tensor:
    """Noise through the inverse of a map that is bound to contexts.

    Args:
        flow: at B contexts.
        num_samples: how many at each, n.
        num_contexts: B.
        generator: of the noise, on the CPU.
        like: gives the precision and the device of noise and draws.

    Returns:
        Shape (n, B, D).

    Raises:
        RuntimeError: points whose inverse is not found.
    """
    noise = torch.randn(num_samples * num_contexts, flow.dim, generator=generator).to(like)
    rows = torch.arange(len(noise), device=noise.device) % num_contexts
    dtype = next(iter(flow.stages[0].potential.weights.values())).dtype
    pieces = zip(noise.split(_DRAWS_AT_ONCE), rows.split(_DRAWS_AT_ONCE), strict=True)
    found = [all_points(flow.rows(some).inverse(part.to(dtype))).to(like) for part, some in pieces]
    return torch.cat(found).view(num_samples, num_contexts, flow.dim)
