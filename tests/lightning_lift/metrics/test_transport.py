import pytest
import torch

from lightning_lift.metrics import l2_uvp, transport_cosine


def test_percentages_of_the_targets_variance() -> None:
    x = torch.randn(20_000, 3, generator=torch.Generator().manual_seed(0))
    truth = 2.0 * x + 1.0
    assert float(l2_uvp(truth, truth)) == 0.0
    assert float(l2_uvp(truth.mean(0).expand_as(truth), truth)) == pytest.approx(100.0, rel=1e-3)
    assert float(l2_uvp(2.2 * x + 1.0, truth)) == pytest.approx(1.0, rel=0.02)  # 0.2^2 / 2^2


def test_cosine() -> None:
    x = torch.randn(20_000, 2, generator=torch.Generator().manual_seed(0))
    assert float(transport_cosine(x, 3.0 * x, 2.0 * x)) == pytest.approx(1.0)
    assert float(transport_cosine(x, x + x.flip(1) * torch.tensor([1.0, -1.0]), 2.0 * x)) == pytest.approx(
        0.0, abs=0.02
    )


@pytest.mark.parametrize("figure", [l2_uvp, lambda a, b: transport_cosine(a, a, b)])
def test_shapes(figure: object) -> None:
    with pytest.raises(ValueError, match=r"\(3, 2\) and true ones of \(4, 2\)"):
        figure(torch.zeros(3, 2), torch.zeros(4, 2))  # type: ignore[operator]
