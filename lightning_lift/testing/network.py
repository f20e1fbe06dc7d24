"""What every convex network must hold."""

import copy
import io

import torch
from torch import Tensor

from lightning_lift.diagnostics import search_least_eigenvalue, worst_jensen_gap
from lightning_lift.networks import ConvexNetwork
from lightning_lift.parameterizations import ProjectedGradient
from lightning_lift.potential import Potential


class NetworkContract:
    """Derive, and define ``make(dim)``; a partially convex network is tried at random contexts.

    Attributes:
        dims: input dimensions to try.
        training_steps: optimizer steps before the trained network is looked at again.
    """

    dims: tuple[int, ...] = (1, 2, 5)
    training_steps: int = 20

    def make(self, dim: int) -> ConvexNetwork:
        """A fresh network on ``dim`` inputs."""
        raise NotImplementedError

    def _weights(self, network: ConvexNetwork) -> dict[str, Tensor]:
        parameters = dict(network.named_parameters())
        return {name: parameters[name].detach() for name in network.nonnegative_names()}

    def _points(self, dim: int, dtype: torch.dtype = torch.float64) -> Tensor:
        generator = torch.Generator().manual_seed(1)
        points = 2.0 * torch.randn(16, dim, generator=generator, dtype=dtype)
        special = torch.tensor([[0.0], [50.0], [-50.0]], dtype=dtype).expand(3, dim)
        return torch.cat([special, points])

    def _bound(self, network: ConvexNetwork, count: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
        """Contexts as the network's methods take them; nothing for a network without."""
        if network.context_shape is None:
            return {}
        generator = torch.Generator().manual_seed(3)
        return {"context": torch.randn(count, *network.context_shape, generator=generator).to(dtype)}

    def test_shapes_and_declared_names(self) -> None:
        for dim in self.dims:
            network = self.make(dim)
            assert network.dim == dim
            for count in (1, 7):
                assert network(torch.zeros(7, dim), **self._bound(network, count)).shape == (7,)
            assert network.nonnegative_names()
            for name, weight in self._weights(network).items():
                assert (weight >= 0).all(), f"{name} starts negative"

    def test_derivatives_equal_autograd_in_float64(self) -> None:
        for dim in self.dims:
            torch.manual_seed(0)
            network = self.make(dim).double()
            weights, x = self._weights(network), self._points(dim)
            order = 2 if network.twice_differentiable else 1
            bound = self._bound(network, len(x), x.dtype)
            ours = network.derivatives(x, weights, order, **bound)
            generic = ConvexNetwork.derivatives(network, x, weights, order, **bound)
            for mine, reference in zip(ours, generic, strict=True):
                if reference is not None and mine is not None:
                    torch.testing.assert_close(mine, reference, rtol=1e-10, atol=1e-10 * float(reference.abs().max()))

    def test_derivatives_are_pure_in_the_weights(self) -> None:
        network = self.make(2).double()
        weights, x = self._weights(network), self._points(2)
        scaled = {name: 2.0 * weight for name, weight in weights.items()}
        bound = self._bound(network, 1, x.dtype)
        before = network.derivatives(x, weights, order=1, **bound).value
        assert not torch.equal(network.derivatives(x, scaled, order=1, **bound).value, before)
        assert torch.equal(network.derivatives(x, weights, order=1, **bound).value, before)

    def test_convex_after_training_and_reload(self) -> None:
        for dim in self.dims:
            torch.manual_seed(0)
            network = self.make(dim)
            projected = ProjectedGradient().bind(network)
            optimizer = torch.optim.Adam([*network.parameters(), *projected.parameters()], lr=1e-2)
            for _ in range(self.training_steps):
                x = torch.randn(64, dim)
                potential = Potential(network, projected.weights(), **self._bound(network, len(x)))
                loss = (potential.value(x) - x.abs().sum(1)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                projected.project_()
            one = self._bound(network, 1)
            self._check_convex(Potential(network, projected.weights(), **one))
            saved = io.BytesIO()
            torch.save({"network": network.state_dict(), "weights": projected.state_dict()}, saved)
            saved.seek(0)
            state = torch.load(saved, weights_only=True)
            again_network, again = copy.deepcopy(network), copy.deepcopy(projected)
            for p in [*again_network.parameters(), *again.parameters()]:
                p.data.zero_()
            again_network.load_state_dict(state["network"])
            again.load_state_dict(state["weights"])
            x = torch.randn(8, dim)
            restored = Potential(again_network, again.weights(), **one)
            assert torch.equal(restored.value(x), Potential(network, projected.weights(), **one).value(x))

    def _check_convex(self, potential: Potential) -> None:
        generator = torch.Generator().manual_seed(2)
        points = 3.0 * torch.randn(256, potential.dim, generator=generator)
        assert worst_jensen_gap(potential, points) <= 32 * torch.finfo(torch.float32).eps
        if potential.network.twice_differentiable:
            k = potential.network.strong_convexity
            found = search_least_eigenvalue(potential, points[:16])
            assert found.eigenvalue >= k - 1e-6 - 1e-5 * k, f"curvature {found.eigenvalue} below k={k} at {found.point}"
