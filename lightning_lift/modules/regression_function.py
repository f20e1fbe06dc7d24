"""What a regression has fitted: link, mean and slopes in original units, its losses, its frozen form."""

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_lift.datamodules.units import Units
from lightning_lift.modules.frozen import FrozenEnergy
from lightning_lift.potential import Potential
from lightning_lift.programs.function import ConvexFunction

_FAR_RATE = 10.0  # of the largest count

LossName = Literal["squared", "absolute", "quantile", "poisson", "logistic"]


class RegressionFunction(NamedTuple):
    """A fitted regression in original units.

    Attributes:
        potential: E in training units.
        sign: the link is sign * E; -1 where it is concave.
        loss: name of the loss, which decides link and mean.
        units: of the inputs.
        target_units: of the target, one number each; of use where the link is the identity.
        context_units: of the context; None where it is served in original ones.
    """

    potential: Potential
    sign: float
    loss: LossName
    units: Units
    target_units: Units
    context_units: Units | None = None

    def link(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """The convex (or concave) function at points (N, D), shape (N,): identity, logarithm or logit of the mean."""
        link = self.sign * self._at(context).value(self._scaled(self.units, x))
        return self.target_units.to(link).invert(link) if self.is_identity else link

    def mean(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """The prediction at points (N, D), shape (N,)."""
        return mean_of(self.loss, self.link(x, context))

    def gradient(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Its slope in each input, prediction a unit of the input, shape (N, D)."""
        value, gradient = self._at(context).value_gradient(self._scaled(self.units, x))
        gradient = self.sign * gradient / self.units.to(gradient).scale
        if self.is_identity:
            return gradient * self.target_units.to(gradient).scale
        mean = mean_of(self.loss, self.sign * value)
        slope = mean if self.loss == "poisson" else mean * (1.0 - mean)
        return gradient * slope.unsqueeze(1)

    @property
    def is_identity(self) -> bool:
        """Whether the prediction is the link itself."""
        return self.loss not in ("poisson", "logistic")

    def _at(self, context: Tensor | None) -> Potential:
        """E at a context in original units."""
        if context is not None and self.context_units is not None:
            context = self._scaled(self.context_units, context)
        return self.potential.at(context)

    def _scaled(self, units: Units, original: Tensor) -> Tensor:
        """In training units and the weights' precision; the difference to the location is taken in float64."""
        like = next(iter(self.potential.weights.values()))
        return Units(*(part.to(original.device) for part in units)).apply(original).to(like)


def mean_of(loss: LossName, link: Tensor) -> Tensor:
    """The prediction that belongs to values (N,) of the link."""
    return link.exp() if loss == "poisson" else link.sigmoid() if loss == "logistic" else link


def row_losses(loss: LossName, link: Tensor, target: Tensor, quantile: float = 0.5) -> Tensor:
    """The loss of each row: a proper score of the prediction, up to a constant of the target for ``poisson``.

    Args:
        loss: ``squared``; ``absolute``; ``quantile``, the pinball loss max(q r, (q - 1) r) of r = target - link
            (Koenker & Bassett, 1978); ``poisson``, exp(link) - target * link, with a tangent in the place of exp above
            ten times the largest count of the rows (or above 10), where one far row would outweigh all others for as
            long as Adam remembers; ``logistic``, the cross-entropy.
        link: shape (N,).
        target: shape (N,).
        quantile: q, for ``quantile``.
    """
    if loss == "squared":
        return (link - target).square()
    if loss == "absolute":
        return (link - target).abs()
    if loss == "quantile":
        return torch.maximum(quantile * (target - link), (quantile - 1.0) * (target - link))
    if loss == "poisson":
        within = link.minimum((_FAR_RATE * target.max().clamp(min=1.0)).log())
        return within.exp() * (1.0 + link - within) - target * link
    return F.binary_cross_entropy_with_logits(link, target, reduction="none")


class FrozenRegression(nn.Module):
    """A regression with constant weights, in original units.

    Args:
        function: copied; nothing is shared with the model it came from.
    """

    def __init__(self, function: RegressionFunction) -> None:
        super().__init__()
        self.energy = FrozenEnergy(function.potential)
        self._sign, self._loss = function.sign, function.loss
        stated = {name: part for name, part in function._asdict().items() if isinstance(part, Units)}
        self._units = list(stated)
        for name, units in stated.items():
            for kind, part in units._asdict().items():
                self.register_buffer(f"{name}_{kind}", part.clone())
        self.eval()

    def function(self) -> RegressionFunction:
        """The regression: ``mean``, ``link`` and ``gradient`` of points in original units."""
        kinds = Units._fields
        own = {name: Units(*(self.get_buffer(f"{name}_{kind}") for kind in kinds)) for name in self._units}
        return RegressionFunction(self.energy.potential(), self._sign, self._loss, **own)

    def convex_function(self) -> ConvexFunction:
        """The link in original units, for programs: a mean or a quantile, the logarithm of a rate, a logit."""
        function = self.function()
        units = function.target_units if function.is_identity else Units(torch.zeros(1), torch.ones(1))
        inputs = Units(*(part.cpu().double() for part in function.units))
        scale = function.sign * float(units.scale)
        return ConvexFunction(function.potential, inputs, scale, float(units.location), None, function.context_units)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """The prediction at points (N, D), and contexts (N, ...), in original units, shape (N,)."""
        return self.function().mean(x, context)
