import torch

from lightning_lift.flows.lanczos import log_quadratic_form


def test_equals_the_logarithm_of_a_tridiagonal_matrix() -> None:
    generator = torch.Generator().manual_seed(0)
    main = 2.0 + torch.rand(3, 2, 6, generator=generator, dtype=torch.float64)
    side = torch.rand(3, 2, 5, generator=generator, dtype=torch.float64) - 0.5
    matrix = torch.diag_embed(main) + torch.diag_embed(side, 1) + torch.diag_embed(side, -1)
    eigenvalues, vectors = torch.linalg.eigh(matrix)
    logarithm = (vectors * eigenvalues.log().unsqueeze(-2)) @ vectors.transpose(-2, -1)
    norm = torch.rand(3, 2, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(log_quadratic_form(main, side, norm), norm * logarithm[..., 0, 0])


def test_is_nan_where_the_matrix_has_no_logarithm() -> None:
    main = torch.tensor([[1.0, 2.0], [1.0, -2.0], [torch.nan, 1.0]])
    value = log_quadratic_form(main, torch.full((3, 1), 0.1), torch.ones(3))
    assert value.isnan().tolist() == [False, True, True]
    assert value.dtype == torch.float32
