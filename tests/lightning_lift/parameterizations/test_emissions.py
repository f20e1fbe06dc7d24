import functools
import math

import pytest
import torch
from torch import Tensor

from lightning_lift.modules import LogConcaveEBM
from lightning_lift.networks import ICNN
from lightning_lift.parameterizations import Lift
from lightning_lift.parameterizations.emissions import (
    DenseEmission,
    Emission,
    LowRankEmission,
    RowColumnEmission,
    SharedBasisEmission,
    make_emission,
)

# Matrices of one shape twice, a vector, a scalar, and a convolution's four axes.
SHAPES = [torch.Size(s) for s in ((6, 5), (7,), (6, 5), (), (3, 2, 2, 2))]
SIZE = 30 + 7 + 30 + 1 + 24
CODE = 9
KINDS = ("dense", "low_rank", "row_column", "shared_basis")


def make(kind: str, shapes: list[torch.Size] = SHAPES, rank: int | None = None) -> Emission:
    torch.manual_seed(0)
    return make_emission(kind, CODE, shapes, rank)


def code(seed: int = 1) -> Tensor:
    return torch.randn(CODE, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", KINDS)
def test_emits_one_number_a_weight_that_follows_the_code(kind: str) -> None:
    emission = make(kind)
    first, second = emission(code(1)), emission(code(2))
    assert first.shape == second.shape == (SIZE,)
    assert ((first - second).abs() > 0).all(), "every weight follows the code"
    torch.testing.assert_close(emission(2.0 * code(1) - code(2)), 2.0 * first - second, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_zero_start_is_exact_for_every_code_and_can_learn(kind: str) -> None:
    emission = make(kind)
    emission.zero_()
    assert torch.equal(emission(code(1)), torch.zeros(SIZE))
    assert torch.equal(emission(1e3 * code(2)), torch.zeros(SIZE))
    target = torch.randn(SIZE, generator=torch.Generator().manual_seed(3))
    optimizer = torch.optim.Adam(emission.parameters(), lr=0.05)
    losses = []
    for _ in range(300):
        loss = (emission(code(1)) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    # The additive form reaches its best fit only, by the analysis of variance of each matrix.
    best = float(_additive_residual(target)) if kind == "row_column" else 0.0
    assert losses[-1] - best < 0.02 * (losses[0] - best)
    if kind == "row_column":
        assert losses[-1] >= best * (1.0 - 1e-4)


def _additive_residual(target: Tensor) -> Tensor:
    total = torch.zeros(())
    for piece, (rows, columns) in zip(target.split([30, 7, 30, 1, 24]), make("row_column").shapes, strict=True):
        m = piece.view(rows, columns)
        total += (m - m.mean(0) - m.mean(1, keepdim=True) + m.mean()).square().sum()
    return total / SIZE


@pytest.mark.parametrize("kind", KINDS)
def test_zero_start_has_a_gradient_in_every_weight_of_the_latent(kind: str) -> None:
    """A step along the gradient at the zero start moves the emission of every tensor."""
    emission = make(kind)
    emission.zero_()
    (emission(code()) * torch.randn(SIZE, generator=torch.Generator().manual_seed(4))).sum().backward()
    with torch.no_grad():
        for parameter in emission.parameters():
            parameter.sub_(0.1 * parameter.grad)
    pieces = emission(code()).split([30, 7, 30, 1, 24])
    assert all((piece.abs().max() > 0) for piece in pieces)


def test_low_rank_is_the_product_of_its_factors() -> None:
    emission = make("low_rank", [torch.Size((6, 5)), torch.Size((4,))], rank=3)
    assert isinstance(emission, LowRankEmission)
    scales = (emission.scale.weight @ code()).view(2, 3)
    matrix = emission.left[0] @ torch.diag(scales[0]) @ emission.right[0]
    vector = emission.left[1] @ torch.diag(scales[1]) @ emission.right[1]
    torch.testing.assert_close(emission(code()), torch.cat([matrix.flatten(), vector.flatten()]))
    assert int(torch.linalg.matrix_rank(make("low_rank", [torch.Size((6, 5))], rank=3)(code()).view(6, 5))) == 3


def test_row_column_is_a_sum_over_rows_and_columns() -> None:
    emission = make("row_column", [torch.Size((6, 5))])
    assert isinstance(emission, RowColumnEmission)
    row, column = (emission.weight @ code()).split([6, 5])
    torch.testing.assert_close(emission(code()).view(6, 5), row[:, None] + column[None, :])


def test_tensors_of_one_shape_share_a_basis() -> None:
    shapes = [torch.Size(s) for s in ((6, 5), (4, 4), (6, 5))]
    emission = make("shared_basis", shapes, rank=2)
    assert isinstance(emission, SharedBasisEmission)
    assert [tuple(b.shape) for b in emission.basis] == [(2, 30), (2, 16)]
    coefficients = (emission.coefficient.weight @ code()).view(3, 2)
    expected = [coefficients[0] @ emission.basis[0], coefficients[1] @ emission.basis[1]]
    torch.testing.assert_close(emission(code()), torch.cat([*expected, coefficients[2] @ emission.basis[0]]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_random_start_has_the_spread_of_the_dense_one(kind: str) -> None:
    """Numeric slack starts emit at random: a standardised code gives entries of about 1/sqrt(3), whatever the kind."""
    shape = [torch.Size((60, 50))]
    values = []
    for seed in range(40):
        torch.manual_seed(seed)
        z = torch.randn(CODE)
        emission = make_emission(kind, CODE, shape)
        values.append(float(emission((z - z.mean()) / z.std(correction=0)).square().mean()))
    factor = 2.0 if kind == "row_column" else 1.0  # a sum of two
    # Rank-2 sums vary most from draw to draw: a standard error of about 0.05 over 40.
    assert factor / 3 * 0.5 < sum(values) / len(values) < factor / 3 * 1.6


def test_numbers_of_parameters() -> None:
    shapes = [torch.Size((512, 512))] * 4 + [torch.Size((512,))]
    counts = {
        kind: sum(p.numel() for p in make_emission(kind, CODE, shapes).parameters())
        for kind in KINDS
        if kind != "dense"
    }
    assert counts["low_rank"] == 16 * (4 * 1024 + 513 + 5 * CODE)
    assert counts["row_column"] == CODE * (4 * 1024 + 513)
    assert counts["shared_basis"] == 2 * (512 * 512 + 512 + 5 * CODE)


def test_dense_draws_what_a_linear_layer_draws() -> None:
    """Checkpoints and seeds of the lift before emissions had kinds stay good."""
    torch.manual_seed(3)
    layer = torch.nn.Linear(CODE, SIZE, bias=False)
    torch.manual_seed(3)
    emission = DenseEmission(CODE, SHAPES)
    assert torch.equal(emission.weight, layer.weight)
    assert torch.equal(emission(code()), layer(code()))
    assert math.prod(emission.weight.shape) == SIZE * CODE


@pytest.mark.parametrize(
    ("kind", "rank", "message"),
    [
        ("sparse", None, "emission='sparse'"),
        ("low_rank", 0, "emission_rank=0"),
        ("dense", 4, "emission_rank=4 with emission='dense'"),
        ("row_column", 4, "emission_rank=4"),
    ],
)
def test_bad_arguments_are_named(kind: str, rank: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_emission(kind, CODE, SHAPES, rank)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("emit", ["constrained", "all"])
def test_a_stack_of_lifts_is_evaluated_at_once(kind: str, emit: str) -> None:
    """Runs of several seeds train side by side under vmap: the emission must allow it."""
    batch = torch.randn(10, 2, generator=torch.Generator().manual_seed(0))
    lifts = []
    for seed in range(3):
        torch.manual_seed(seed)
        lifts.append(Lift((8, 6), emission=kind, emit=emit, slack_start=-1.0, slack_gain=8.0).bind(ICNN(2, (5, 5))))
    parameters, _ = torch.func.stack_module_state(lifts)

    def weights(one: dict[str, Tensor]) -> dict[str, Tensor]:
        return torch.func.functional_call(_Weights(lifts[0]), {f"lift.{k}": v for k, v in one.items()}, (batch,))

    together = torch.func.vmap(weights)(parameters)
    for i, lift in enumerate(lifts):
        for name, tensor in lift.weights(batch).items():
            torch.testing.assert_close(together[name][i], tensor)


class _Weights(torch.nn.Module):
    def __init__(self, lift: Lift) -> None:
        super().__init__()
        self.lift = lift

    def forward(self, batch: Tensor) -> dict[str, Tensor]:
        return self.lift.weights(batch)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("emit", ["constrained", "all"])
def test_a_trained_lift_freezes_without_its_emission(kind: str, emit: str) -> None:
    torch.manual_seed(0)
    make = functools.partial(Lift, body_widths=(8, 6), emission=kind, emit=emit, slack_gain=8.0)
    module = LogConcaveEBM(1, functools.partial(ICNN, widths=[6, 6]), make)
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    rows = torch.randn(64, 1)
    for _ in range(3):
        optimizer.zero_grad()
        module.batch_loss(rows).backward()
        optimizer.step()
    module.parameterization.calibrate([rows])
    module.eval()
    density = module.freeze()
    assert not [name for name in density.state_dict() if "body" in name or "emission" in name or "slack" in name]
    torch.testing.assert_close(density.log_prob(rows), module.log_prob(rows), rtol=1e-5, atol=1e-5)
