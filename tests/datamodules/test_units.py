import pytest
import torch

from lightning_lift.datamodules import Units


def units(kind: str) -> Units:
    torch.manual_seed(0)
    scale = torch.rand(3, dtype=torch.float64) + 0.5
    mixed = torch.randn(3, 3, dtype=torch.float64) + 2.0 * torch.eye(3)
    return Units(1e6 + torch.randn(3, dtype=torch.float64), scale if kind == "columns" else mixed)


@pytest.mark.parametrize("kind", ["columns", "mixed"])
def test_there_and_back_with_the_stated_log_determinant(kind: str) -> None:
    own, rows = units(kind), torch.randn(7, 3, dtype=torch.float64)
    torch.testing.assert_close(own.apply(own.invert(rows)), rows, rtol=1e-8, atol=1e-8)
    jacobian = torch.func.jacfwd(lambda row: own.invert(row[None])[0])(rows[0])
    torch.testing.assert_close(own.log_det, torch.linalg.slogdet(jacobian)[1])
    deviations = (jacobian @ jacobian.T).diagonal().sqrt()
    torch.testing.assert_close(own.spread, deviations)


@pytest.mark.parametrize("ours", ["columns", "mixed"])
@pytest.mark.parametrize("theirs", ["columns", "mixed"])
def test_rows_of_one_table_in_the_units_of_another(ours: str, theirs: str) -> None:
    one, two = units(ours), Units(units(theirs).location + 0.3, 1.5 * units(theirs).scale)
    rows = torch.randn(5, 3, dtype=torch.float64)
    torch.testing.assert_close(one.of(two).invert(rows), one.apply(two.invert(rows)), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("kind", ["columns", "mixed"])
def test_columns_in_another_order(kind: str) -> None:
    own, rows = units(kind), torch.randn(5, 3, dtype=torch.float64)
    order = [2, 0, 1]
    torch.testing.assert_close(own.reordered(order).invert(rows), own.invert(rows)[:, order])
