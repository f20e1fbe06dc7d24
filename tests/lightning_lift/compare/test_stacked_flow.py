import torch

from lightning_lift.compare.stacked_flow import unrolled_logdet


def test_the_unrolled_log_determinant_is_that_of_lapack() -> None:
    for dim in (1, 2, 3, 4):
        factor = torch.randn(50, dim, dim, generator=torch.Generator().manual_seed(dim), dtype=torch.float64)
        hessian = factor @ factor.mT + 0.1 * torch.eye(dim, dtype=torch.float64)
        torch.testing.assert_close(unrolled_logdet(hessian), torch.linalg.slogdet(hessian).logabsdet)


def test_what_is_not_positive_definite_has_none() -> None:
    hessian = torch.diag_embed(torch.tensor([[1.0, 2.0], [1.0, -2.0], [-1.0, -2.0]]))
    assert unrolled_logdet(hessian).isnan().tolist() == [False, True, True]
