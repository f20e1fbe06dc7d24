import functools
import math
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_lift.datamodules import (
    EightGaussiansDataModule,
    GaussianPairDataModule,
    LogSumExpPairDataModule,
    TransportBatch,
    TransportDataModule,
)
from lightning_lift.flows import convex_conjugate
from lightning_lift.modules import BrierMap
from lightning_lift.networks import ICNN, PICNN
from lightning_lift.parameterizations import Lift, ProjectedGradient
from lightning_lift.testing import ModuleContract

small = functools.partial(ICNN, widths=(32, 32))


def trained(module: BrierMap, data: Any, steps: int, resumed: Any = None, **settings: Any) -> L.Trainer:
    silent = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = L.Trainer(accelerator="cpu", max_steps=steps, num_sanity_val_steps=0, **(silent | settings))
    trainer.fit(module, data, ckpt_path=resumed, weights_only=None if resumed is None else True)
    return trainer


def figures(module: BrierMap, data: Any, steps: int) -> dict[str, float]:
    found = trained(module, data, steps).test(module, data, verbose=False)[0]
    return {name.removeprefix("test/"): value for name, value in found.items()}


def make(dim: int = 2, **settings: Any) -> BrierMap:
    L.seed_everything(0, verbose=False)
    return BrierMap(dim, **({"network": small} | settings))


def normal(count: int, dim: int = 2, seed: int = 0) -> Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))


SIZES = {"num_source": 512, "num_target": 384, "num_val": 64, "num_test": 64, "batch_size": 64}


class TestNewton(ModuleContract):
    def make(self) -> BrierMap:
        return BrierMap(2, network=small)

    def make_data(self) -> TransportDataModule:
        return LogSumExpPairDataModule(2, **SIZES)


class TestCycle(TestNewton):
    def make(self) -> BrierMap:
        return BrierMap(2, conjugate="cycle", network=small)


def test_a_gaussian_pair_is_exact() -> None:
    found = figures(make(4), GaussianPairDataModule(4, num_test=20_000), 800)
    assert found["l2_uvp"] <= 0.1
    assert found["l2_uvp_inverse"] <= 0.1
    assert abs(found["w2_half_lower"] - found["w2_half_exact"]) <= 3.0 * found["w2_half_lower_standard_error"]
    assert found["unsolved"] == 0.0


@pytest.mark.parametrize(
    "conjugate",
    ["newton", *(pytest.param(rival, marks=pytest.mark.slow) for rival in ("amortized", "cycle", "minimax"))],
)
def test_each_way_to_the_conjugate_finds_a_map_that_is_not_linear(conjugate: Any) -> None:
    data = LogSumExpPairDataModule(2, num_source=8192, num_target=4096, num_val=512, num_test=4096)
    module = make(conjugate=conjugate)
    module.balance(data.split("train").source, data.split("train").target)  # type: ignore[arg-type]
    start = figures(module, data, 0)["l2_uvp"]
    assert start > 4.0  # the Gaussian map
    found = figures(module, data, 300 if conjugate == "newton" else 900)
    assert found["l2_uvp"] < {"newton": 0.25, "amortized": 0.5, "cycle": 0.3, "minimax": 0.6}[conjugate] * start
    # a bound, whatever the training
    exact = found["w2_half_exact"]
    error = math.hypot(found["w2_half_lower_standard_error"], data.w2_half_error)
    assert found["w2_half_lower"] <= exact + 4.0 * error


def test_the_step_is_the_gradient_of_the_dual() -> None:
    """By the envelope theorem; here against a conjugate that is differentiated itself, in float64."""
    module = make(2, network=functools.partial(ICNN, widths=(8, 8), output_scale_start=1.0), tolerance=1e-10).double()
    x, y = normal(50).double(), normal(40, seed=1).double()
    module.balance(x, y)
    module.train()
    parameters = list(module.parameters())
    ours = torch.autograd.grad(module.batch_loss(TransportBatch(x, y)), parameters)
    f = module.potential()
    u, v = module.units.apply(x), module.field_units["target"].apply(y)
    objective = f.value(u).mean() + convex_conjugate(f, v).value.mean()
    exact = torch.autograd.grad(objective, parameters)
    for one, two in zip(ours, exact, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-8, atol=1e-10)


@pytest.mark.slow
def test_the_lower_bound_is_one_for_any_convex_function() -> None:
    """On random Gaussian and log-sum-exp pairs, with random networks and short fits."""
    margins = []
    for seed in range(100):
        dim = 1 + seed % 8
        kind = GaussianPairDataModule if seed % 2 else LogSumExpPairDataModule
        data = kind(dim, pair_seed=seed, num_source=2048, num_target=2048, num_val=64, num_test=2048)
        L.seed_everything(seed, verbose=False)
        scale = 10.0 ** (seed % 5 - 3)
        module = BrierMap(dim, network=functools.partial(ICNN, widths=(16, 16), output_scale_start=scale))
        if seed % 10 == 0:
            trained(module, data, 40)
        else:
            train = data.split("train")
            assert train.target is not None
            module.balance(train.source, train.target)
        test = data.split("test")
        assert test.target is not None
        terms = module.eval().transport_map().dual_terms(test.source, test.target)
        assert terms.is_bound
        value = float(terms.source.mean() + terms.target.mean()) + terms.offset
        variance = float(terms.source.var() / len(test.source) + terms.target.var() / len(test.target))
        margins.append((value - data.w2_half) / math.sqrt(variance + data.w2_half_error**2))
    assert max(margins) <= 4.0


def test_bounds_between_samples_hold_the_exact_value() -> None:
    pytest.importorskip("ot")
    data = GaussianPairDataModule(2, num_source=2048, num_target=2048, num_val=64, num_test=1500)
    found = figures(make(), data, 20)
    error = found["w2_half_lower_standard_error"]
    assert found["w2_half_lower"] <= found["w2_half_exact"] + 4.0 * error
    assert found["w2_half_exact"] <= found["w2_half_upper"] + 4.0 * error


def test_an_unsolved_conjugate_keeps_the_bound() -> None:
    data = LogSumExpPairDataModule(2, num_source=2048, num_target=2048, num_val=64, num_test=2048)
    train, test = data.split("train"), data.split("test")
    assert train.target is not None
    assert test.target is not None
    module = make().eval()
    module.balance(train.source, train.target)
    transport = module.transport_map()
    exact = transport.dual_terms(test.source, test.target)
    rough = transport.dual_terms(test.source, test.target, torch.float32)
    # the same up to round-off, from above: f* is bounded, not guessed
    assert float((rough.target - exact.target).max()) <= 1e-4
    free = make(network=functools.partial(ICNN, widths=(8, 8), strong_convexity=0.0))
    free.balance(train.source, train.target)
    assert not free.eval().transport_map().dual_terms(test.source, test.target).is_bound
    assert "w2_half_lower" not in figures(free, data, 2)


def test_original_units() -> None:
    """Far from the origin and with unlike scales: the map, its inverse, the path and the dual's value."""
    scale, shift = torch.tensor([10.0, 0.5]), torch.tensor([1e4, -5.0])
    x, y = normal(4000) * scale + shift, (normal(3000, seed=1) * 2.0 + 1.0) * scale - shift
    module = make()
    module.balance(x, y)
    mapped = module.transport(x)
    a = 2.0 * torch.eye(2)
    exact = (x - x.mean(0)) @ a + y.mean(0)
    # standard errors of two sample covariances, and the network's small start
    assert float((mapped - exact).div(scale).abs().max()) < 0.5
    torch.testing.assert_close(module.inverse_transport(mapped), x, rtol=1e-6, atol=1e-3)
    torch.testing.assert_close(module.interpolate(x, 0.25), 0.75 * x + 0.25 * mapped)
    frozen: Any = module.freeze()
    torch.testing.assert_close(frozen(x), mapped)
    torch.testing.assert_close(frozen.inverse(mapped).x, module.inverse_map(mapped).x)
    exported = torch.export.export(frozen, (x[:8],))
    torch.testing.assert_close(exported.module()(x[:8]), mapped[:8])
    terms = module.eval().transport_map().dual_terms(x, y)
    value = float(terms.source.mean() + terms.target.mean()) + terms.offset
    difference = (x.double().mean(0) - y.double().mean(0)).square().sum()
    moments = float(difference + (x.double().var(0).sqrt() - y.double().var(0).sqrt()).square().sum()) / 2.0
    assert value == pytest.approx(moments, rel=1e-3)


def test_pairs_of_a_plain_loader_and_of_unequal_lengths() -> None:
    x, y = normal(256), normal(256, seed=1) * 3.0
    module = make()
    trained(module, DataLoader(TensorDataset(x, y), 64, shuffle=True), 150)
    assert float((module.transport(x) - 3.0 * x).norm(dim=1).mean()) < 0.5
    data = TransportDataModule(normal(2000), normal(9000, seed=1), batch_size=64)
    found = figures(make(), data, 30)
    assert abs(found["energy_distance"]) < 4.0 * found["energy_distance_standard_error"]


def test_one_dimension_is_the_sorted_rows() -> None:
    x = normal(4000, 1)
    y = -torch.rand(4000, 1, generator=torch.Generator().manual_seed(1)).log()
    module = make(1)
    trained(module, TransportDataModule(x, y), 600)
    inner = slice(200, 3800)
    mapped, exact = module.transport(x.sort(0).values)[inner], y.sort(0).values[inner]
    assert float((mapped - exact).square().mean() / y.var()) < 5e-3


@pytest.mark.parametrize("kind", ["identical", "two points", "heavy tails", "disjoint"])
def test_samples_that_are_not_kind(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = normal(2000), normal(2000, seed=1)
    exact = None
    if kind == "identical":
        y, exact = x.clone(), 0.0
    if kind == "two points":
        x = torch.tensor([[-1.0, 0.0], [1.0, 0.0]])[torch.randint(2, (2000,), generator=generator)]
    if kind == "heavy tails":
        y = y / torch.rand(2000, 1, generator=generator).clamp(min=1e-4)
    if kind == "disjoint":
        y = y * 0.1 + 1000.0
        exact = 0.5 * (2 * 1000.0**2)
    data = TransportDataModule(x, y, val_fraction=0.2, test_fraction=0.2)
    module = make()
    found = figures(module, data, 150)
    assert all(math.isfinite(value) for value in found.values())
    assert found["unsolved"] <= 0.01
    assert torch.isfinite(module.transport(x)).all()
    if exact is not None:
        assert found["w2_half_lower"] == pytest.approx(exact, rel=1e-3, abs=0.03)
    if kind == "two points":
        # each point is spread no further: x is sent to one place, and the nearest half-plane's mean is the best
        sent = module.transport(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
        assert float((sent - torch.tensor([[-1.0, 0.0], [1.0, 0.0]]) * math.sqrt(2.0 / math.pi)).abs().max()) < 0.3


def test_prediction_maps_rows_with_a_flag() -> None:
    data = LogSumExpPairDataModule(2, **SIZES)
    module = make()
    trainer = trained(module, data, 10)
    x = data.split("predict").source
    predicted = torch.cat(trainer.predict(module, data))  # type: ignore[arg-type]
    torch.testing.assert_close(predicted[:, :2], module.transport(x))
    assert predicted[:, 2].eq(1.0).all()
    module.direction = "inverse"
    of_target = torch.cat(trainer.predict(module, data))  # type: ignore[arg-type]
    torch.testing.assert_close(of_target[:, :2], module.inverse_transport(data.split("test").target))  # type: ignore[arg-type]
    loader = DataLoader(TensorDataset(predicted[:, :2]), 64)
    back = torch.cat(trainer.predict(module, loader))  # type: ignore[arg-type]
    torch.testing.assert_close(back[:, :2], x, rtol=1e-3, atol=1e-3)
    assert module.prediction_columns == ("mapped_x1", "mapped_x2", "converged")


def test_kept_rows_start_from_their_last_solution() -> None:
    data = LogSumExpPairDataModule(2, num_source=512, num_target=256, num_val=64, num_test=64, batch_size=64)
    module = make()
    trained(module, data, 40)
    solver: Any = module._solver
    assert len(solver._points) >= 256
    points = solver._points[:256]
    with torch.no_grad():
        v = module.field_units["target"].apply(data.split("train").target.double()).float()  # type: ignore[union-attr]
        residual = (module.train().potential().gradient(points) - v).norm(dim=1)
    assert float((residual / (1.0 + v.norm(dim=1))).median()) < 0.1  # 4 steps ago on average


def test_a_resumed_fit_goes_on_in_its_units(tmp_path: Path) -> None:
    """Its rows' solutions are found anew, to the tolerance; all else is as if it had not been interrupted."""
    constant = {"lr_scheduler": None, "tolerance": 1e-5}  # a schedule over the trainer's steps would differ
    data = LogSumExpPairDataModule(2, **SIZES)
    whole = make(**constant)
    trained(whole, data, 16, limit_val_batches=0)
    first = make(**constant)
    trained(first, data, 8, limit_val_batches=0).save_checkpoint(tmp_path / "half.ckpt")
    again = make(**constant)
    trained(again, LogSumExpPairDataModule(2, **SIZES), 16, str(tmp_path / "half.ckpt"), limit_val_batches=0)
    assert torch.equal(again.units.scale, whole.units.scale)
    x = data.split("test").source
    torch.testing.assert_close(again.transport(x), whole.transport(x), rtol=1e-3, atol=1e-3)


def test_autocast_changes_nothing() -> None:
    module, batch = make(), TransportBatch(normal(64), normal(64, seed=1).exp())
    module.balance(*batch[:2])  # type: ignore[arg-type]
    module.train()
    plain = module.batch_loss(batch)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(module.batch_loss(batch), plain)


def test_errors_name_the_thing_and_the_way_out() -> None:
    with pytest.raises(ValueError, match="conjugate='exact' is not known; choose newton"):
        make(conjugate="exact")
    with pytest.raises(ValueError, match="direction='back' is not known"):
        make(direction="back")
    with pytest.raises(ValueError, match="tolerance=0"):
        make(tolerance=0.0)
    for network in (functools.partial(ICNN, activation="relu"), functools.partial(PICNN, context_shape=(2,))):
        with pytest.raises(ValueError, match="cannot be the potential of a transport"):
            make(network=network)
    with pytest.raises(RuntimeError, match="has not been fitted"):
        make().transport(normal(3))
    with pytest.raises(ValueError, match="3 of 5 rows of target are not finite"):
        make().balance(normal(5), torch.tensor([[math.nan, 0.0]] * 3 + [[0.0, 1.0], [1.0, 0.0]]))
    with pytest.raises(ValueError, match="all rows of source are equal"):
        make().balance(torch.ones(5, 2), normal(5))
    with pytest.raises(ValueError, match="target is missing"):
        make().batch_loss([normal(5)])
    with pytest.raises(ValueError, match=r"source of the batch has shape \(5, 2\) and target \(5, 3\)"):
        make().batch_loss([normal(5), normal(5, 3)])
    with pytest.raises(ValueError, match=r"points of shape \(5, 3\) do not fit"):
        make().batch_loss([normal(5, 3), normal(5, 3)])
    with pytest.raises(ValueError, match="in units of its own"):
        trained(make(), EightGaussiansDataModuleInUnits(), 1)


class EightGaussiansDataModuleInUnits(EightGaussiansDataModule):
    """Rows in units that are not their own."""

    def setup(self, stage: str | None = None) -> None:
        self.set_standardization(torch.zeros(2), 2.0 * torch.ones(2))
        super().setup(stage)


def test_a_network_of_ones_own_and_every_parameterization() -> None:
    data = LogSumExpPairDataModule(2, **SIZES)
    for parameterization in (ProjectedGradient, Lift, functools.partial(Lift, emit="all")):
        found = figures(make(parameterization=parameterization, learning_rate=1e-3), data, 5)
        assert math.isfinite(found["l2_uvp"])
        assert ("w2_half_lower" in found) == (not isinstance(parameterization, functools.partial))
    assert isinstance(make(conjugate="amortized").network, nn.ModuleList)
