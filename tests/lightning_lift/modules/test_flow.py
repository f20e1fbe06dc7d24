import functools
import io
import math
import re
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging
from torch import Tensor
from torch.utils.data import DataLoader

from lightning_lift.datamodules import EightGaussiansDataModule, GumbelDataModule, TabularDataModule
from lightning_lift.flows.logdet import StochasticLogDet
from lightning_lift.modules import ConvexModule, ConvexPotentialFlow, FrozenFlow
from lightning_lift.networks import ICNN, ActNorm
from lightning_lift.parameterizations import DirectSoftplus, Lift, ProjectedGradient
from lightning_lift.testing import ModuleContract

SMALL = functools.partial(ICNN, widths=[12, 12], strong_convexity=0.3, free_weight_std=1.0, bias_std=1.0)


def plane(**arguments: Any) -> EightGaussiansDataModule:
    sizes = {"batch_size": 32, "batches_per_epoch": 10, "num_val": 100, "num_test": 100, "num_calibration": 256}
    return EightGaussiansDataModule(**{**sizes, "std": 0.5, **arguments})


def wine(columns: int = 2) -> TabularDataModule:
    names = ["alcohol", "color_intensity", "hue", "malic_acid"]
    return TabularDataModule(table="load_wine", columns=names[:columns], batch_size=32)


def wide_grid(center: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Points in the plane and quadrature log-weights, dense about the centre and far into the tails.

    Where its potentials are flat a flow has Gaussian tails as wide as one over the product of their convexities.
    """
    u = torch.linspace(-9.0, 9.0, 321, dtype=torch.float64)
    line, slope = u.sinh(), u.cosh() * (u[1] - u[0])  # trapezoidal: the ends do not count
    points = torch.cartesian_prod(line, line) * scale.double() + center.double()
    weights = torch.cartesian_prod(slope, slope).log().sum(1) + scale.double().log().sum()
    return points.float(), weights


def trainer(**arguments: Any) -> L.Trainer:
    return ModuleContract()._trainer(**arguments)


def fitted(data: Any, steps: int = 60, **arguments: Any) -> tuple[ConvexPotentialFlow, L.Trainer]:
    L.seed_everything(0, verbose=False)
    module = ConvexPotentialFlow(
        data.dim, **{"network": SMALL, "parameterization": DirectSoftplus, "learning_rate": 1e-2, **arguments}
    )
    run = trainer(max_steps=steps, num_sanity_val_steps=0, limit_val_batches=0)
    run.fit(module, datamodule=data)
    return module, run


class TestLift(ModuleContract):
    def make(self) -> ConvexModule:
        return ConvexPotentialFlow(2, SMALL, num_blocks=2)

    def make_data(self) -> Any:
        return plane()


class TestLiftOfEverything(TestLift):
    def make(self) -> ConvexModule:
        learned = functools.partial(SMALL, strong_convexity="learned")
        return ConvexPotentialFlow(2, learned, functools.partial(Lift, emit="all"), num_blocks=2)


class TestProjectedOnATable(ModuleContract):
    def make(self) -> ConvexModule:
        network = functools.partial(ICNN, widths=[8, 8], strong_convexity="learned", actnorm=True)
        return ConvexPotentialFlow(4, network, ProjectedGradient)

    def make_data(self) -> Any:
        return wine(4)


class TestDirectInOneDimensionWithoutActNorm(ModuleContract):
    def make(self) -> ConvexModule:
        return ConvexPotentialFlow(1, SMALL, DirectSoftplus, actnorm=False)

    def make_data(self) -> Any:
        return GumbelDataModule(batch_size=32, batches_per_epoch=5, num_val=100, num_test=100)


class TestStochastic(ModuleContract):
    def make(self) -> ConvexModule:
        return ConvexPotentialFlow(4, SMALL, DirectSoftplus, logdet="stochastic")

    def make_data(self) -> Any:
        return wine(4)


@pytest.mark.parametrize("parameterization", [ProjectedGradient, DirectSoftplus, Lift])
@pytest.mark.parametrize("num_blocks", [1, 3])
def test_density_integrates_to_one_and_training_helps(parameterization: type, num_blocks: int) -> None:
    data = wine()
    module, run = fitted(data, steps=80, parameterization=parameterization, num_blocks=num_blocks)
    frozen = module.freeze()
    points, log_weights = wide_grid(data.location, 0.5 * data.units.spread)
    mass = (frozen.log_prob(points).double() + log_weights).exp().sum()
    assert float(mass) == pytest.approx(1.0, abs=1e-3)
    untrained = ConvexPotentialFlow(2, SMALL, DirectSoftplus, num_blocks=num_blocks)
    before = trainer().test(untrained, datamodule=data, verbose=False)[0]["test/nll"]
    after = run.test(module, datamodule=data, verbose=False)[0]
    assert after["test/nll"] < before - 0.1
    assert after["test/nll_original"] == pytest.approx(after["test/nll"] + data.log_scale, abs=1e-5)
    assert after["test/inverse_error"] <= 1e-4
    assert after["test/inverse_failures"] == 0.0
    assert 1.0 <= after["test/hessian_condition"] <= after["test/hessian_condition_max"]
    assert module.parameterization.is_feasible()


def test_loss_is_the_mean_negative_log_likelihood() -> None:
    data = plane()
    module, _ = fitted(data, num_blocks=2)
    batch = data.split("test")
    assert module.batch_loss(batch).item() == pytest.approx(-module.log_prob_scaled(batch).mean().item(), abs=1e-5)
    with pytest.raises(NotImplementedError, match="batch_loss"):
        module.loss(module.potential(), batch)


def test_log_density_does_not_depend_on_the_rest_of_the_batch() -> None:
    data = plane()
    module, _ = fitted(data, parameterization=Lift, num_blocks=2)
    x = data.split("test")[:20]
    torch.testing.assert_close(
        module.log_prob(x), torch.cat([module.log_prob(row[None]) for row in x]), rtol=1e-5, atol=1e-5
    )


def test_samples_follow_the_density() -> None:
    """E[-log p(X)] of the samples is the entropy by quadrature."""
    module, _ = fitted(plane(), steps=150, num_blocks=2)
    with torch.no_grad():
        x = module.sample(10_000, seed=1)
        assert torch.equal(x, module.sample(10_000, seed=1))
        assert not torch.equal(x, module.sample(10_000, seed=2))
        surprise = -module.log_prob(x).double()
        points, log_weights = wide_grid(torch.zeros(2), torch.ones(2))
        log_p = module.log_prob(points).double()
    mass = (log_p + log_weights).exp()
    assert float(mass.sum()) == pytest.approx(1.0, abs=1e-3)
    entropy = -float((mass * log_p).sum())
    assert abs(float(surprise.mean()) - entropy) < 4 * float(surprise.std()) / 100 + 1e-3


def test_map_and_inverse_undo_each_other() -> None:
    data = plane()
    module, _ = fitted(data, num_blocks=3)
    x = data.split("test")
    back = module.reconstruct(x)
    assert back.converged.all()
    torch.testing.assert_close(back.x.float(), x, rtol=1e-4, atol=1e-4)
    y = torch.randn(50, 2)
    found = module.inverse_map(y)
    torch.testing.assert_close(module.map(found.x), y, rtol=1e-4, atol=1e-4)
    path = module.interpolate(x[:5], x[5:10], 7)
    assert path.shape == (7, 5, 2)
    torch.testing.assert_close(path[0].float(), x[:5], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(path[-1].float(), x[5:10], rtol=1e-4, atol=1e-4)
    middle = (module.map(x[:5]) + module.map(x[5:10])) / 2
    torch.testing.assert_close(module.map(path[3]), middle, rtol=1e-4, atol=1e-4)


def test_points_that_are_not_found_are_an_error() -> None:
    module, _ = fitted(plane(), steps=5, inverse_tolerance=1e-25)
    with pytest.raises(RuntimeError, match=r"of 50 points were not found.*strong_convexity"):
        module.sample(50)
    with pytest.raises(RuntimeError, match="were not found"):
        module.freeze().sample(50)
    assert not module.inverse_map(torch.randn(9, 2)).converged.all()


def test_convex_conjugate_of_one_block() -> None:
    """Fenchel-Young: F(u) + F*(y) >= <u, y>, with equality at y = grad F(u); the gradient of F* is the inverse."""
    module, _ = fitted(plane(), actnorm=False)
    u, y = torch.randn(30, 2), torch.randn(30, 2).requires_grad_()
    conjugate = module.convex_conjugate(y)
    assert conjugate.inverse.converged.all()
    (gradient,) = torch.autograd.grad(conjugate.value.sum(), y)
    torch.testing.assert_close(gradient, module.inverse_map(y.detach()).x.float(), rtol=1e-4, atol=1e-4)
    potential = module.potential()
    gap = potential.value(u) + conjugate.value - (u * y).sum(1)
    assert (gap >= -1e-5).all()
    at_gradient = module.convex_conjugate(potential.gradient(u)).value
    torch.testing.assert_close(
        potential.value(u) + at_gradient, (u * potential.gradient(u)).sum(1), rtol=1e-4, atol=1e-4
    )
    with pytest.raises(ValueError, match=r"num_blocks=2.*no convex conjugate"):
        ConvexPotentialFlow(2, SMALL, DirectSoftplus, num_blocks=2).convex_conjugate(u)


def actnorms(module: ConvexPotentialFlow) -> list[ActNorm]:
    return [part for part in module.modules() if isinstance(part, ActNorm)]


@pytest.mark.parametrize("parameterization", [DirectSoftplus, functools.partial(Lift, slack_start=-2.0)])
def test_actnorms_start_from_the_calibration_rows_before_the_first_validation(parameterization: Any) -> None:
    class Watched(ConvexPotentialFlow):
        started: bool | None = None

        def on_validation_start(self) -> None:
            if self.started is None:
                self.started = all(bool(norm.initialized) for norm in actnorms(self))

    data = plane()
    network = functools.partial(SMALL, actnorm=True)
    module = Watched(2, network, parameterization, num_blocks=2, learning_rate=1e-9)
    assert len(actnorms(module)) == 2 * (1 + 2)
    trainer(max_steps=1).fit(module, datamodule=data)
    assert module.started
    rows = next(iter(data.calibration_dataloader()))
    torch.testing.assert_close(actnorms(module)[0](rows).mean(0), torch.zeros(2), atol=1e-4, rtol=0)
    torch.testing.assert_close(actnorms(module)[0](rows).std(0), torch.ones(2), atol=1e-2, rtol=0)


def test_actnorms_start_once(tmp_path: Path) -> None:
    module, run = fitted(plane(), steps=5, num_blocks=2)
    run.save_checkpoint(tmp_path / "five.ckpt")
    before = [norm.log_scale.detach().clone() for norm in actnorms(module)]
    again = ConvexPotentialFlow.load_from_checkpoint(tmp_path / "five.ckpt", weights_only=True)
    again.learning_rate = 1e-12
    trainer(max_steps=2).fit(again, datamodule=plane(radius=20.0))
    for norm, expected in zip(actnorms(again), before, strict=True):
        torch.testing.assert_close(norm.log_scale, expected)


def test_actnorms_start_from_the_first_batch_without_a_data_module() -> None:
    torch.manual_seed(0)
    rows = 5.0 + 3.0 * torch.randn(64, 2)
    module = ConvexPotentialFlow(2, SMALL, DirectSoftplus, learning_rate=1e-9)
    trainer(max_steps=2).fit(module, DataLoader(rows, batch_size=32))
    torch.testing.assert_close(actnorms(module)[0](rows[:32]).mean(0), torch.zeros(2), atol=1e-4, rtol=0)


def test_actnorms_start_after_a_learning_rate_finder() -> None:
    from lightning.pytorch.tuner import Tuner

    data = plane(batches_per_epoch=30)
    module = ConvexPotentialFlow(2, SMALL, DirectSoftplus)
    run = trainer(max_steps=5)
    assert Tuner(run).lr_find(module, datamodule=data, num_training=20) is not None
    run.fit(module, datamodule=data)
    assert all(bool(norm.initialized) for norm in actnorms(module))


def test_weight_averaging_averages_what_was_started() -> None:
    data = plane()
    module = ConvexPotentialFlow(2, SMALL, DirectSoftplus, num_blocks=2, learning_rate=1e-3)
    trainer(max_steps=10, callbacks=[EMAWeightAveraging(decay=0.9)]).fit(module, datamodule=data)
    assert all(bool(norm.initialized) for norm in actnorms(module))
    rows = next(iter(data.calibration_dataloader()))
    assert float((actnorms(module)[0](rows).std(0) - 1.0).abs().max()) < 0.1


@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_training_does_not_depend_on_the_units_of_the_data(unit: float) -> None:
    """With an ActNorm before the potential the same rows in other units give the same steps, and D log(unit) nats."""
    rows = torch.randn(256, 2, generator=torch.Generator().manual_seed(0)) + torch.tensor([30.0, -1.0])
    losses = []
    for factor in (1.0, unit):
        torch.manual_seed(0)
        module = ConvexPotentialFlow(2, functools.partial(SMALL, actnorm=True), DirectSoftplus, num_blocks=2)
        module.start_actnorms(factor * rows)
        optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
        for _ in range(40):
            optimizer.zero_grad()
            loss = module.batch_loss(factor * rows)
            loss.backward()
            optimizer.step()
        losses.append(float(loss.detach()) - 2.0 * math.log(factor))
    assert losses[0] < 3.0  # the entropy of the rows is 2.84
    assert losses[1] == pytest.approx(losses[0], abs=1e-2)


def test_inner_actnorms_that_a_lift_emits_are_refused() -> None:
    everything = functools.partial(Lift, emit="all")
    module = ConvexPotentialFlow(2, functools.partial(SMALL, actnorm=True), everything)
    with pytest.raises(RuntimeError, match="emit: constrained"):
        trainer().fit(module, datamodule=plane())


def test_double_precision_of_the_map_keeps_float32_weights() -> None:
    data = plane()
    single, _ = fitted(data, num_blocks=2)
    double = ConvexPotentialFlow(2, SMALL, DirectSoftplus, num_blocks=2, precision="float64")
    double.load_state_dict(single.state_dict())
    x = data.split("test")
    assert double.log_prob(x).dtype == double.map(x).dtype == torch.float32
    torch.testing.assert_close(double.log_prob(x), single.log_prob(x), rtol=1e-4, atol=1e-4)
    double.batch_loss(x).backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in double.parameters())
    frozen = double.freeze()
    torch.testing.assert_close(frozen.log_prob(x), double.log_prob(x).double(), rtol=1e-5, atol=1e-5)
    metrics = trainer().test(double, datamodule=data, verbose=False)[0]
    assert metrics["test/inverse_error"] <= 1e-6  # of the rounding to float32 alone


def test_stochastic_logdet_agrees_with_the_exact_one_within_its_stated_error() -> None:
    data = wine(4)
    exact, _ = fitted(data, num_blocks=2)
    probes = functools.partial(StochasticLogDet, evaluation="stochastic", evaluation_probes=64)
    module = ConvexPotentialFlow(
        4, SMALL, DirectSoftplus, num_blocks=2, logdet="stochastic", stochastic_logdet=probes, learning_rate=1e-4
    )
    module.load_state_dict(exact.state_dict(), strict=False)
    wanted = trainer().test(exact, datamodule=data, verbose=False)[0]
    found = trainer().test(module, datamodule=data, verbose=False)[0]
    assert found["test/logdet_standard_error"] > 0
    assert abs(found["test/nll"] - wanted["test/nll"]) < 4 * found["test/logdet_standard_error"]
    assert found["test/cg_failures"] == 0.0
    assert found["test/cg_residual"] <= 1e-4
    assert "test/hessian_condition" not in found
    run = trainer(max_steps=12, log_every_n_steps=1)
    run.fit(module, datamodule=data)
    assert 0 < run.callback_metrics["train/cg_residual"] <= 1e-4


@pytest.mark.parametrize(("dim", "kind"), [(2, "exact"), (300, "stochastic")])
def test_the_choice_of_auto_is_known(dim: int, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ConvexPotentialFlow(dim, functools.partial(ICNN, widths=[4])).logdet.kind == kind


@pytest.mark.parametrize("emit", ["constrained", "all"])
def test_frozen_flow_is_exported_and_samples_in_original_units(emit: str) -> None:
    data = wine()
    module, _ = fitted(data, steps=30, num_blocks=2, parameterization=functools.partial(Lift, emit=emit))
    frozen = module.freeze()
    assert isinstance(frozen, FrozenFlow)
    assert not list(frozen.parameters())
    assert not [name for name in frozen.state_dict() if "body" in name or "emission" in name]
    x = frozen.sample(16, seed=0)
    torch.testing.assert_close(module.sample(16, seed=0), x, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(frozen.log_prob(x.double()), frozen.log_prob(x), rtol=1e-4, atol=1e-4)
    program = torch.export.export(frozen, (x,), dynamic_shapes=({0: torch.export.Dim("rows")},))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    again = torch.export.load(file).module()
    for rows in (x, frozen.sample(5, seed=1)):
        torch.testing.assert_close(again(rows), frozen(rows), rtol=1e-5, atol=1e-5)


def test_an_interrupted_test_leaves_no_rows_behind() -> None:
    class Interrupted(ConvexPotentialFlow):
        def on_test_epoch_end(self) -> None:
            raise ValueError("stop")

    data = plane()
    module = Interrupted(2, SMALL, DirectSoftplus, inverse_rows=70)
    for _ in range(2):
        with pytest.raises(ValueError, match="stop"):
            trainer().test(module, datamodule=data, verbose=False)
        assert module._measured == 70


def test_divergence_is_an_outcome_not_an_error() -> None:
    data = plane()
    module, run = fitted(data, steps=5)
    with torch.no_grad():
        for parameter in module.parameterization.parameters():
            parameter.fill_(math.nan)
    metrics = run.test(module, datamodule=data, verbose=False)[0]
    assert math.isnan(metrics["test/nll"])
    assert metrics["test/inverse_failures"] == 1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_blocks": 0}, "num_blocks=0"),
        ({"num_blocks": True}, "num_blocks=True"),
        ({"precision": "bf16"}, "precision='bf16'"),
        ({"logdet": "hutchinson"}, "logdet='hutchinson'"),
        ({"chunk_size": 0}, "chunk_size=0"),
        ({"inverse_tolerance": 0.0}, "inverse_tolerance=0.0"),
        ({"inverse_rows": -1}, "inverse_rows=-1"),
        ({"network": functools.partial(ICNN, activation="relu")}, "not twice differentiable"),
        ({"network": functools.partial(ICNN, strong_convexity=0.0)}, "strong_convexity=0"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ConvexPotentialFlow(**{"dim": 2, "network": SMALL, **arguments})


@pytest.mark.parametrize("call", ["sample", "interpolate", "ends"])
def test_bad_calls_are_named(call: str) -> None:
    module = ConvexPotentialFlow(2, SMALL, DirectSoftplus)
    x: Tensor = torch.zeros(3, 2)
    with pytest.raises(ValueError, match=r"num_samples=0|num_points=1|shape \(3, 2\) and last \(2, 2\)"):
        if call == "sample":
            module.sample(0)
        elif call == "interpolate":
            module.interpolate(x, x, 1)
        else:
            module.interpolate(x, x[:2], 3)


def test_the_documented_python_runs() -> None:
    page = (Path(__file__).parents[3] / "docs" / "flows.md").read_text()
    (source,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    quiet = "max_steps=3, accelerator='cpu', logger=False, enable_checkpointing=False, enable_progress_bar=False"
    names: dict[str, Any] = {}
    exec(source.replace("max_epochs=1", quiet), names)
    assert names["path"].shape == (9, 1, 2)
    assert names["frozen"].log_prob(names["draws"]).shape == (1000,)


@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true"])
def test_mixed_and_double_precision_train_as_single_does(precision: str) -> None:
    losses = []
    for used in (precision, "32-true"):
        torch.manual_seed(0)
        module = ConvexPotentialFlow(2, functools.partial(SMALL, actnorm=True), DirectSoftplus, num_blocks=2)
        run = trainer(max_steps=11, precision=used, limit_val_batches=0)
        run.fit(module, datamodule=plane())
        losses.append(float(run.callback_metrics["train/loss"]))
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
