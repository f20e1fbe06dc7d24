"""What every parameterization must hold."""

import copy
import io
import pickle

import torch
from torch import Tensor, nn

from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import Parameterization
from lightning_lift.potential import Potential


class ParameterizationContract:
    """Derive, and define ``make()``.

    Attributes:
        matched_start: whether binding keeps the network's own initial weights (False for a constant slack start).
        has_right_inverse: whether the weights can be set (False for a lift without slack, which must say so).
        trains_on_other_weights: whether the weights of training differ from the feasible ones that are set and
            evaluated, on purpose: latent noise, or a splitting method. Start, right inverse and feasibility are then
            those of evaluation.
    """

    matched_start: bool = True
    has_right_inverse: bool = True
    trains_on_other_weights: bool = False

    def make(self) -> Parameterization:
        """A fresh, unbound parameterization."""
        raise NotImplementedError

    def _bound(self, dtype: torch.dtype = torch.float32) -> tuple[ICNN, Parameterization, dict[str, Tensor]]:
        torch.manual_seed(0)
        network = ICNN(2, widths=(16, 12), strong_convexity=0.02).to(dtype)
        start = {name: p.detach().clone() for name, p in network.named_parameters()}
        parameterization = self.make().bind(network)
        return network, parameterization, {name: start[name] for name in parameterization.names}

    def _batch(self, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(32, 2, generator=torch.Generator().manual_seed(seed), dtype=dtype)

    def _set_weights_of(self, parameterization: Parameterization, batch: Tensor) -> dict[str, Tensor]:
        """The weights that were set: those of this training batch, or of evaluation where training uses others."""
        if not self.trains_on_other_weights:
            return parameterization.weights(batch)
        parameterization.calibrate([batch])
        parameterization.eval()
        weights = parameterization.weights(batch)
        parameterization.train()
        return weights

    def _loss(self, network: ICNN, parameterization: Parameterization, batch: Tensor) -> Tensor:
        return (Potential(network, parameterization.weights(batch)).value(batch) - 1.0).square().mean()

    def test_takes_the_weights_over(self) -> None:
        network, parameterization, start = self._bound()
        assert parameterization.names == tuple(network.nonnegative_names())
        assert parameterization.num_weights == sum(w.numel() for w in start.values())
        held = {name for name, _ in network.named_parameters()} | set(network.state_dict())
        assert not held & set(parameterization.names)

    def test_starts_where_the_network_did(self) -> None:
        _, parameterization, start = self._bound()
        if self.matched_start:
            weights = self._set_weights_of(parameterization, self._batch(0))
            for name, weight in start.items():
                torch.testing.assert_close(
                    weights[name], weight.clamp(min=self._floor(parameterization)), rtol=1e-6, atol=0.0
                )

    def test_right_inverse_is_exact_for_every_batch(self) -> None:
        for dtype, tolerance in ((torch.float32, 1e-6), (torch.float64, 1e-12)):
            _, parameterization, start = self._bound(dtype)
            target = {name: 0.01 + 3.0 * torch.rand_like(weight) for name, weight in start.items()}
            if not self.has_right_inverse:
                self._check_that_setting_is_refused(parameterization, target)
                continue
            assert parameterization.initialize_(target) == 0
            for seed in (1, 2):
                weights = self._set_weights_of(parameterization, self._batch(seed, dtype))
                for name, weight in target.items():
                    torch.testing.assert_close(weights[name], weight, rtol=tolerance, atol=0.0)

    def test_entries_below_the_floor_are_raised_and_counted(self) -> None:
        _, parameterization, start = self._bound()
        floor = self._floor(parameterization)
        target = {name: torch.ones_like(weight) for name, weight in start.items()}
        next(iter(target.values())).view(-1)[:3] = 0.0
        if not self.has_right_inverse:
            self._check_that_setting_is_refused(parameterization, target)
            return
        raised = parameterization.initialize_(target)
        weights = self._set_weights_of(parameterization, self._batch(0))
        first = next(iter(weights[name] for name in target)).reshape(-1)[:3]
        assert raised == (3 if floor > 0 else 0) or (raised == 3 and float(first.detach().min()) > 0)
        assert (first >= 0).all()
        assert (first <= max(2.0 * floor, 1e-3)).all()

    def test_feasible_through_optimizer_steps(self) -> None:
        for optimizer_class, rate in ((torch.optim.SGD, 1e-3), (torch.optim.Adam, 0.05)):
            network, parameterization, _ = self._bound()
            parameters = [*network.parameters(), *parameterization.parameters()]
            optimizer = optimizer_class(parameters, lr=rate)
            for step in range(20):
                loss = self._loss(network, parameterization, self._batch(step))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                parameterization.after_step_()
                assert parameterization.is_feasible()
                weights = self._set_weights_of(parameterization, self._batch(step))
                assert all((weights[name] >= 0).all() for name in parameterization.names)

    def test_projection_is_idempotent(self) -> None:
        _, parameterization, _ = self._bound()
        with torch.no_grad():
            for parameter in parameterization.parameters():
                parameter.sub_(0.2)
        parameterization.project_()
        once = copy.deepcopy(parameterization.state_dict())
        parameterization.project_()
        for name, tensor in parameterization.state_dict().items():
            if isinstance(tensor, Tensor):
                assert torch.equal(tensor, once[name])

    def test_gradient_reaches_each_trainable_tensor(self) -> None:
        network, parameterization, _ = self._bound()
        parameters = {name: p for name, p in parameterization.named_parameters() if p.requires_grad}
        optimizer = torch.optim.SGD(parameters.values(), lr=1e-3)
        for step in range(
            2
        ):  # a matched lift starts with a zero emission: the body feels the loss from the second step
            optimizer.zero_grad()
            self._loss(network, parameterization, self._batch(step)).backward()
            if step == 0:
                optimizer.step()
        for name, parameter in parameters.items():
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max() > 0, name

    def test_evaluation_does_not_depend_on_the_batch(self) -> None:
        network, parameterization, _ = self._bound()
        self._perturb(parameterization)
        parameterization.calibrate([self._batch(3), self._batch(4)])
        parameterization.eval()
        x = self._batch(5)
        together = Potential(network, parameterization.weights(x)).value(x)
        alone = torch.cat([Potential(network, parameterization.weights(row[None])).value(row[None]) for row in x])
        torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)

    def test_copies_and_round_trips(self) -> None:
        _, parameterization, _ = self._bound()
        self._perturb(parameterization)
        parameterization.calibrate([self._batch(3)])
        parameterization.eval()
        expected = parameterization.weights()
        saved = io.BytesIO()
        torch.save(parameterization.state_dict(), saved)
        saved.seek(0)
        again = copy.deepcopy(parameterization)
        for parameter in again.parameters():
            parameter.data.zero_()
        again.load_state_dict(torch.load(saved, weights_only=True))
        twins: list[nn.Module] = [again, copy.deepcopy(parameterization), pickle.loads(pickle.dumps(parameterization))]
        for twin in twins:
            assert isinstance(twin, Parameterization)
            found = twin.weights()
            assert all(torch.equal(found[name], expected[name]) for name in parameterization.names)

    def test_a_loaded_copy_goes_on_as_the_original_does(self) -> None:
        """What a parameterization keeps beside its parameters travels in its state: a resumed run is the same run."""
        network, parameterization, _ = self._bound()
        optimizer = torch.optim.SGD([p for p in parameterization.parameters() if p.requires_grad], lr=1e-3)
        for step in range(3):
            optimizer.zero_grad()
            self._total(network, parameterization, self._batch(step)).backward()
            optimizer.step()
            parameterization.after_step_()
        saved = io.BytesIO()
        torch.save(parameterization.state_dict(), saved)
        saved.seek(0)
        torch.manual_seed(99)
        twin_network, twin, _ = self._bound()
        twin_network.load_state_dict(network.state_dict())
        twin.load_state_dict(torch.load(saved, weights_only=True))
        for step in (3, 4):
            batch = self._batch(step)
            first = parameterization.latent(batch)
            assert torch.equal(first, parameterization.latent(batch.clone())), "two readings of one batch differ"
            assert torch.equal(first, twin.latent(batch)), "the copy was not resumed in step"
            one, two = (self._total(n, p, batch) for n, p in ((network, parameterization), (twin_network, twin)))
            assert torch.equal(one, two)
            for part in (parameterization, twin):
                part.after_step_()

    def _total(self, network: ICNN, parameterization: Parameterization, batch: Tensor) -> Tensor:
        penalty = parameterization.penalty()
        loss = self._loss(network, parameterization, batch)
        return loss if penalty is None else loss + penalty

    @staticmethod
    def _check_that_setting_is_refused(parameterization: Parameterization, target: dict[str, Tensor]) -> None:
        refused = ""
        try:
            parameterization.initialize_(target)
        except ValueError as error:
            refused = str(error)
        assert "no right inverse" in refused

    @staticmethod
    def _floor(parameterization: Parameterization) -> float:
        return parameterization.readout.floor if parameterization.readout is not None else 0.0

    @staticmethod
    def _perturb(parameterization: Parameterization) -> None:
        generator = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for parameter in parameterization.parameters():
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
        parameterization.project_()
