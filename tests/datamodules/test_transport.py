from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lightning_lift.datamodules import (
    BatchLoader,
    EightGaussiansDataModule,
    GaussianPairDataModule,
    LogSumExpPairDataModule,
    TabularDataModule,
    TransportBatch,
    TransportDataModule,
    TwoSpiralsDataModule,
    W2BenchmarkDataModule,
)
from lightning_lift.datamodules.gaussian_maps import balanced_units, gaussian_distance, gaussian_map
from lightning_lift.datamodules.transport import PairSource
from tests.problems import benchmark_pair


def normal(count: int, dim: int = 2, seed: int = 0) -> Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))


def served(loader: BatchLoader) -> list[TransportBatch]:
    return list(loader)


def test_each_row_of_a_side_comes_equally_often() -> None:
    batch = TransportBatch(normal(12), normal(5, seed=1))
    loader = BatchLoader(PairSource(batch, (1, 2), shuffle=True), 4, drop_last=True)
    seen: Counter[int] = Counter()
    for _ in range(5):  # epochs of 12 rows: 60 of either side
        for part in served(loader):
            assert part.target is not None
            assert part.positions is not None
            assert torch.equal(batch.target[part.positions], part.target)  # type: ignore[index]
            seen.update(part.positions.tolist())
    assert set(seen.values()) == {12}
    first, again = served(BatchLoader(PairSource(batch, (1, 2), True), 4)), served(loader)
    assert not torch.equal(first[0].source, again[0].source)


def test_in_order_each_row_comes_once() -> None:
    batch = TransportBatch(normal(10), normal(5, seed=1))
    parts = served(BatchLoader(PairSource(batch, (0, 0), shuffle=False), 4))
    assert torch.equal(torch.cat([part.source for part in parts]), batch.source)
    assert torch.equal(torch.cat([part.target for part in parts]), batch.target)  # type: ignore[misc]


def test_equal_settings_give_equal_rows_and_a_resumed_loader_goes_on() -> None:
    def make() -> TransportDataModule:
        return TransportDataModule(normal(100), normal(70, seed=1), batch_size=16)

    one, two = make().train_dataloader(), make().train_dataloader()
    whole = [part.positions for epoch in range(2) for part in one]
    iterator = iter(two)
    begun = [next(iterator).positions for _ in range(3)]
    resumed = make().train_dataloader()
    resumed.load_state_dict(two.state_dict())
    rest = [part.positions for epoch in range(2) for part in resumed]
    together = [*begun, *rest][: len(whole)]
    assert all(torch.equal(a, b) for a, b in zip(whole, together, strict=True))  # type: ignore[arg-type]


def sides(folder: Path) -> dict[str, Any]:
    rows = normal(60).double().numpy()
    np.savetxt(folder / "rows.csv", rows, delimiter=",", header="a,b", comments="")
    np.save(folder / "rows.npy", rows)
    return {
        "tensor": torch.from_numpy(rows),
        "array": rows,
        "csv": str(folder / "rows.csv"),
        "npy": folder / "rows.npy",
        "sampler": lambda count, generator: torch.randn(count, 2, generator=generator),
        "drawn": EightGaussiansDataModule(num_val=10, num_test=10),
        "table": TabularDataModule(path=str(folder / "rows.csv")),
    }


@pytest.mark.parametrize("kind", ["tensor", "array", "csv", "npy", "sampler", "drawn", "table"])
def test_sides(kind: str, tmp_path: Path) -> None:
    side = sides(tmp_path)[kind]
    data = TransportDataModule(side, TwoSpiralsDataModule(), num_source=40, num_target=50, num_val=20, num_test=20)
    assert data.dim == 2
    assert data.batch_size == 256
    train = data.split("train")
    assert train.target is not None
    assert len(train.target) == 50
    assert data.batch_size == min(len(train.source), 50)
    if kind in ("tensor", "csv", "table"):  # in original units, every row in one split
        rows = torch.cat([data.split(key).source for key in ("train", "val", "test")])
        expected = normal(60)
        torch.testing.assert_close(rows.sort(0).values, expected.sort(0).values, rtol=1e-5, atol=1e-6)
    assert data.columns == (["a", "b"] if kind in ("csv", "table") else None)


def test_the_pixels_of_an_image(tmp_path: Path) -> None:
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (8, 9, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    data = TransportDataModule(str(tmp_path / "a.png"), normal(100, 3))
    rows = torch.cat([data.split(key).source for key in ("train", "val", "test")])
    assert data.columns == ["red", "green", "blue"]
    expected = torch.from_numpy(pixels.reshape(-1, 3) / 255.0).float()
    torch.testing.assert_close(rows.sort(0).values, expected.sort(0).values)


def test_rows_to_predict(tmp_path: Path) -> None:
    files = sides(tmp_path)
    data = TransportDataModule(files["csv"], normal(80), predict_path=files["csv"])
    batch = next(iter(data.predict_dataloader()))
    torch.testing.assert_close(batch.source, normal(60), rtol=1e-6, atol=1e-6)
    with pytest.raises(ValueError, match="expected those of source"):
        TransportDataModule(normal(80, 3), normal(80, 3), predict_path=files["csv"]).setup()


def test_errors_name_the_thing() -> None:
    with pytest.raises(ValueError, match="source has 2 columns and target 3"):
        TransportDataModule(normal(50), normal(50, 3)).setup()
    rows = normal(50)
    rows[3:5] = torch.nan
    with pytest.raises(ValueError, match="rows of source are not finite in float32"):
        TransportDataModule(rows, normal(50)).setup()
    with pytest.raises(ValueError, match=r"source has shape \(50,\)"):
        TransportDataModule(normal(50)[:, 0], normal(50)).setup()
    with pytest.raises(FileNotFoundError, match=r"nothing\.png"):
        TransportDataModule(source_path="nothing.png", target=normal(50))
    with pytest.raises(ValueError, match="exactly one of target and target_path"):
        TransportDataModule(normal(50))
    with pytest.raises(ValueError, match="5 rows are too few"):
        TransportDataModule(normal(5), normal(50)).setup()


@pytest.mark.parametrize("make", [GaussianPairDataModule, LogSumExpPairDataModule])
@pytest.mark.parametrize("dim", [1, 4])
def test_the_known_map_is_the_gradient_of_a_convex_function(make: Any, dim: int) -> None:
    data = make(dim, pair_seed=3, num_source=4000, num_target=20_000, num_val=10, num_test=10)
    x = data.split("train").source
    jacobian = torch.func.vmap(torch.func.jacrev(lambda row: data.map(row.unsqueeze(0)).squeeze(0)))(x[:50].double())
    torch.testing.assert_close(jacobian, jacobian.mT, rtol=1e-6, atol=1e-8)
    assert float(torch.linalg.eigvalsh(jacobian).min()) > 0.0
    mapped, target = data.map(x), data.split("train").target
    error = (mapped.var(0) / len(x) + target.var(0) / len(target)).sqrt()
    assert float(((mapped.mean(0) - target.mean(0)) / error).abs().max()) < 5.0
    assert data.w2_half > 0.0
    cost = 0.5 * (mapped - x).square().sum(1)
    assert abs(float(cost.mean()) - data.w2_half) <= 5.0 * float(cost.std() / len(x) ** 0.5) + 5.0 * data.w2_half_error


def test_the_benchmark_reads_its_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "pair.npz", **benchmark_pair(3))
    data = W2BenchmarkDataModule(str(tmp_path / "pair.npz"), num_source=4096, num_target=4096, num_val=9, num_test=9)
    assert data.dim == 3
    x = data.split("train").source
    mapped = data.map(x)
    assert float(mapped.mean(0).abs().max()) < 0.1
    assert float(mapped.var(0).mean()) == pytest.approx(1.0, abs=0.1)
    jacobian = torch.stack([torch.autograd.functional.jacobian(data.map, row.unsqueeze(0)).squeeze() for row in x[:5]])
    assert jacobian.isfinite().all()
    # the source has mean 0 and, over its columns, a mean variance of 1
    assert float(x.var(0).mean()) == pytest.approx(1.0, abs=0.05)
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    with pytest.raises(ValueError, match=r"expected v1\.quadratic_layers"):
        W2BenchmarkDataModule(str(tmp_path / "other.npz"))


def test_gaussian_map_and_distance() -> None:
    generator = torch.Generator().manual_seed(0)
    p, q = (m @ m.T for m in torch.randn(2, 4, 4, generator=generator, dtype=torch.float64))
    a = gaussian_map(p, q)
    torch.testing.assert_close(a @ p @ a, q)
    torch.testing.assert_close(a, a.T)
    means = torch.ones(4, dtype=torch.float64), -torch.ones(4, dtype=torch.float64)
    difference = torch.eye(4, dtype=torch.float64) - a
    expected = 16.0 + float((difference @ p @ difference).trace())  # the cost of x -> m_Q + A (x - m_P)
    assert gaussian_distance(means, (p, q)) == pytest.approx(expected, rel=1e-9)


def test_balanced_units_keep_products_and_have_one_covariance() -> None:
    x, y = normal(500, 3) @ normal(3, 3, seed=2) + 50.0, normal(400, 3, seed=1) @ normal(3, 3, seed=3) - 9.0
    source, target = balanced_units(x, y)
    u, v = source.apply(x.double()), target.apply(y.double())
    torch.testing.assert_close(torch.cov(u.T, correction=0), torch.cov(v.T, correction=0), rtol=1e-3, atol=1e-3)
    assert float(u.var(0).mean()) == pytest.approx(1.0, abs=0.01)
    products = (x.double() - source.location) @ (y.double() - target.location).T
    factor = (products / (u @ v.T)).median()
    torch.testing.assert_close(products, factor * (u @ v.T), rtol=1e-6, atol=1e-6)
