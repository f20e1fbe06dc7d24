"""The contract of a parameterization: how the nonnegative weights of convex networks are stored and trained."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn

from lightning_lift.networks.base import ConvexNetwork
from lightning_lift.parameterizations.readouts import Readout


class Parameterization(nn.Module, ABC):
    """How the nonnegative weights theta of every convex network in a module are stored and trained.

    Made without arguments by a factory, then bound: ``Lift().bind(network)``. Binding takes the weights over and leaves
    None in their place on the network, so that no optimizer and no distributed wrapper sees them twice.

    Subclass requirements:
        - ``_build(initial, free, dim)`` creates the parameters;
        - ``latent(batch)`` returns the flat latent, shape (d,), with its autograd graph (theta itself where
          ``readout`` is None);
        - ``_set_weights(flat)`` is the right inverse: afterwards ``weights(batch)`` are these numbers for every batch;
        - ``project_`` is the nearest feasible point where the stored numbers can leave the feasible set;
        - ``after_step_`` and ``penalty`` where a projection is not all that training needs.

    Attributes:
        names: the constrained tensors, by their full name in the bound module, in flattening order.
        shapes: their shapes.
        readout: psi, or None where theta itself is stored.
        slack: the lift's learnable bias b as it is stored, shape (d,); None for parameterizations without one.
        slack_gain: the latent holds slack_gain * slack: d latent / d slack is slack_gain times the identity.
    """

    names: tuple[str, ...]
    shapes: dict[str, torch.Size]
    readout: Readout | None = None
    slack: nn.Parameter | None
    slack_gain: float = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.register_parameter("slack", None)
        self.names = ()
        self.shapes = {}

    @property
    def num_weights(self) -> int:
        """d, the number of constrained weights."""
        return sum(shape.numel() for shape in self.shapes.values())

    @property
    def needs_calibration(self) -> bool:
        """Whether evaluation rests on a reference summary that ``calibrate`` makes."""
        return False

    @property
    def is_stale(self) -> bool:
        """Whether the reference summary is missing or belongs to other body weights than the present ones."""
        return False

    def bind(self, module: nn.Module, dim: int | None = None) -> Self:
        """Take over the nonnegative weights of every ``ConvexNetwork`` in a module.

        Args:
            module: a convex network, or any module that contains some.
            dim: columns of the data batch that ``weights`` will be conditioned on; None for those of the first network.

        Returns:
            This parameterization.

        Raises:
            RuntimeError: it was bound before.
            ValueError: there is no convex network, a declared name is no parameter, or its values are not
                nonnegative and finite.
        """
        if self.names:
            raise RuntimeError(f"{type(self).__name__} is bound already; make a new one for another module.")
        networks = {name: m for name, m in module.named_modules() if isinstance(m, ConvexNetwork)}
        if not networks:
            raise ValueError(
                f"{type(module).__name__} contains no ConvexNetwork, so there is nothing to keep nonnegative; derive "
                "the network from lightning_lift.networks.ConvexNetwork."
            )
        parameters = dict(module.named_parameters())
        constrained: dict[str, Tensor] = {}
        free: dict[str, Tensor] = {}
        for prefix, network in networks.items():
            start = f"{prefix}." if prefix else ""
            for name in network.nonnegative_names():
                constrained[start + name] = _checked_start(start + name, parameters)
        for prefix in networks:
            start = f"{prefix}." if prefix else ""
            free |= {n: p for n, p in parameters.items() if n.startswith(start) and n not in constrained}
        self.names = tuple(constrained)
        self.shapes = {name: tensor.shape for name, tensor in constrained.items()}
        initial = torch.cat([tensor.detach().reshape(-1) for tensor in constrained.values()])
        taken = self._build(initial, free, next(iter(networks.values())).dim if dim is None else dim)
        for name in (*constrained, *taken):
            owner, _, leaf = name.rpartition(".")
            module.get_submodule(owner).register_parameter(leaf, None)
        return self

    @abstractmethod
    def _build(self, initial: Tensor, free: dict[str, Tensor], dim: int) -> Iterable[str]:
        """Create the parameters, starting at ``initial`` (d,); return the names of free tensors taken over too."""

    @abstractmethod
    def latent(self, batch: Tensor | None = None) -> Tensor:
        """The flat latent.

        Args:
            batch: the data batch, shape (N, D); only parameterizations that condition on it read it, in training mode.

        Returns:
            Shape (d,), with its autograd graph.
        """

    def weights(self, batch: Tensor | None = None, latent: Tensor | None = None) -> dict[str, Tensor]:
        """The weights by name, nonnegative for the constrained ones.

        Args:
            batch: the data batch, shape (N, D).
            latent: shape (d,); replaces the constrained latent (for diagnostics that differentiate with respect to it).
        """
        latent = self.latent(batch) if latent is None else latent
        return self.split(latent if self.readout is None else self.readout.value(latent))

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of a flat vector (d,) by tensor name, in the tensors' shapes."""
        pieces = flat.split([shape.numel() for shape in self.shapes.values()])
        return {name: piece.view(shape) for piece, (name, shape) in zip(pieces, self.shapes.items(), strict=True)}

    @torch.no_grad()
    def initialize_(self, weights: Mapping[str, Tensor]) -> int:
        """Set the weights, for every batch: the common start of a fair comparison.

        Args:
            weights: a nonnegative tensor for each of ``names``.

        Returns:
            How many entries lay below the smallest weight that this parameterization can hold, and were raised to it.

        Raises:
            ValueError: names or shapes differ, or values are negative or not finite.
        """
        if set(weights) != set(self.names):
            raise ValueError(
                f"initialize_ needs exactly the tensors {list(self.names)}; missing "
                f"{sorted(set(self.names) - set(weights))}, unknown {sorted(set(weights) - set(self.names))}."
            )
        for name, shape in self.shapes.items():
            if weights[name].shape != shape:
                raise ValueError(f"initialize_: {name} has shape {tuple(weights[name].shape)}, needs {tuple(shape)}.")
            _checked_start(name, weights)
        flat = torch.cat([weights[name].detach().reshape(-1) for name in self.names])
        return self._set_weights(flat)

    @abstractmethod
    def _set_weights(self, flat: Tensor) -> int:
        """The right inverse on flat weights (d,); returns how many were raised to the floor."""

    @torch.no_grad()
    def project_(self) -> None:
        """Move the stored numbers to the nearest feasible point, in place; idempotent. By default a no-op."""

    def after_step_(self) -> None:
        """What must follow each real optimizer step; by default the projection."""
        self.project_()

    def penalty(self) -> Tensor | None:
        """What is added to the task's loss in training, a scalar; None for nothing.

        A splitting method keeps its weights near a feasible copy by such a term.
        """
        return None

    @torch.no_grad()
    def is_feasible(self) -> bool:
        """Whether every stored weight is nonnegative: always so behind a readout."""
        return True

    def calibrate(self, batches: Iterable[Tensor]) -> None:
        """Make the reference summary from data rows; a no-op where evaluation does not need one.

        Args:
            batches: tensors of shape (N, D), together the reference rows.
        """
        del batches

    def is_state_stale(self, state: Mapping[str, Any], prefix: str) -> bool:
        """``is_stale`` for the weights in a state dictionary.

        Args:
            state: a state dictionary of the owning module.
            prefix: of this parameterization's entries in it.
        """
        return False

    def calibrate_state(self, state: dict[str, Any], prefix: str, batches: Iterable[Tensor]) -> None:
        """``calibrate`` for the weights in a state dictionary, changed in place; this module stays as it is.

        Args:
            state: a state dictionary of the owning module.
            prefix: of this parameterization's entries in it.
            batches: tensors of shape (N, D), together the reference rows.
        """
        del state, prefix, batches


def _checked_start(name: str, tensors: Mapping[str, Tensor]) -> Tensor:
    if name not in tensors:
        raise ValueError(
            f"nonnegative_names() lists {name!r}, which is no parameter of the module (it may be bound already); its "
            f"parameters are {sorted(tensors)}."
        )
    tensor = tensors[name].detach()
    if not torch.isfinite(tensor).all():
        raise ValueError(f"{name} holds numbers that are not finite; nonnegative weights must start finite.")
    if (tensor < 0).any():
        raise ValueError(f"{name} starts with a negative weight ({tensor.min().item():.4g}); it must be nonnegative.")
    return tensors[name]


def inverse_in_float64(readout: Readout, flat: Tensor) -> tuple[Tensor, int]:
    """Latents of flat weights (d,), computed in float64, and the count of entries below the floor."""
    # The weight's relative error is |latent| times the latent's: all there may be is one rounding, at the end.
    latent = readout.inverse(flat.cpu().double()).to(flat)
    return latent, int((flat < readout.floor).sum())


def inverse_with_gain(readout: Readout, flat: Tensor, gain: float) -> tuple[Tensor, int]:
    """Stored numbers (d,) whose latent gain * stored gives flat weights (d,), and the count below the floor."""
    latent, raised = inverse_in_float64(readout, flat)
    if gain == 1.0:
        return latent, raised
    stored = latent / gain
    # The gain rounds once more: of the neighbouring floats, take the one whose weight is nearest.
    up, down = (torch.nextafter(stored, stored.new_full((), sign * torch.inf)) for sign in (1, -1))
    candidates = torch.stack([stored, up, down])
    misses = (readout.value(gain * candidates) - flat.clamp(min=readout.floor)).abs()
    return candidates.gather(0, misses.argmin(0, keepdim=True)).squeeze(0), raised
