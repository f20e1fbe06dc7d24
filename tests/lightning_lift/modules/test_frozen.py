import functools
import io

import pytest
import torch
from scipy import stats

from lightning_lift.datamodules import GumbelDataModule, TabularDataModule
from lightning_lift.modules import FrozenDensity, LogConcaveEBM
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import Lift, ProjectedGradient
from lightning_lift.testing import ModuleContract


def frozen(dim: int) -> FrozenDensity:
    data = (
        GumbelDataModule(batch_size=32, num_val=64, num_test=64, loc=3.0, scale=2.0)
        if dim == 1
        else TabularDataModule(table="load_wine", columns=["alcohol", "color_intensity"], batch_size=32)
    )
    torch.manual_seed(0)
    everything = functools.partial(Lift, emit="all")
    module = LogConcaveEBM(
        dim, functools.partial(ICNN, widths=[8, 8]), everything if dim == 1 else ProjectedGradient, learning_rate=1e-2
    )
    ModuleContract()._trainer(max_steps=20).fit(module, datamodule=data)
    result = module.freeze()
    assert isinstance(result, FrozenDensity)
    return result


@pytest.mark.parametrize("dim", [1, 2])
def test_export_reload_and_equal(dim: int) -> None:
    density = frozen(dim)
    x = density.sample(16)
    program = torch.export.export(density, (x,), dynamic_shapes=({0: torch.export.Dim("rows")},))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    again = torch.export.load(file).module()
    for rows in (x, density.sample(5, seed=1)):
        torch.testing.assert_close(again(rows), density(rows), rtol=0.0, atol=1e-6)


@pytest.mark.parametrize("dim", [1, 2])
def test_samples_follow_the_log_density(dim: int) -> None:
    """E[-log p(X)] of the samples equals the entropy by quadrature, in original units."""
    density = frozen(dim)
    x = density.sample(20_000)
    surprise = -density.log_prob(x).double()
    standard_error = float(surprise.std()) / len(x) ** 0.5
    window = torch.stack([x.min(0).values - 3 * x.std(0), x.max(0).values + 3 * x.std(0)])
    from lightning_lift.partition.grids import grid_points, trapezoid_log_weights

    size = 4001 if dim == 1 else 501
    log_p = density.log_prob(grid_points(window, size)).double()
    weights = trapezoid_log_weights(window, size).double().exp()
    entropy = -float((weights * log_p.exp() * log_p).sum())
    assert abs(float(surprise.mean()) - entropy) < 4 * standard_error + 1e-3


def test_one_dimensional_samples_pass_kolmogorov_smirnov() -> None:
    density = frozen(1)
    grid = torch.linspace(-60, 120, 40_001).unsqueeze(1)
    cumulative = torch.cumulative_trapezoid(density.log_prob(grid).double().exp(), dx=180 / 40_000)
    x = density.sample(5_000, seed=3).double().flatten()
    index = ((x + 60) / (180 / 40_000)).long()
    assert stats.kstest(cumulative[index].numpy(), "uniform").pvalue > 1e-3


def test_nothing_is_shared_and_nothing_trains() -> None:
    density = frozen(1)
    assert not list(density.parameters())
    assert not [name for name in density.state_dict() if "body" in name or "emission" in name]
    assert not density.training


@pytest.mark.parametrize(("num_samples", "message"), [(0, "num_samples=0")])
def test_bad_number_of_samples(num_samples: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        frozen(1).sample(num_samples)


def test_wrong_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected \(N, 1\)"):
        frozen(1).log_prob(torch.zeros(3, 2))
