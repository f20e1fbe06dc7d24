import pytest

from lightning_lift.compare.stacked_weights import is_stateless
from lightning_lift.parameterizations import ADMM, DirectSoftplus, Lift, Parameterization, ProjectedGradient, names


class Doubled(DirectSoftplus):
    def latent(self, batch=None):  # type: ignore[no-untyped-def]
        return 2.0 * super().latent(batch)


@pytest.mark.parametrize(
    ("made", "stateless"),
    [
        (ProjectedGradient(), True),
        (DirectSoftplus(latent_gain=10.0), True),
        (Lift(body_widths=(4, 4)), True),
        (ADMM(), True),
        (names.independent_batch(body_widths=(4, 4)), False),  # it keeps an earlier batch
        (names.direct_noise(), False),  # it draws numbers
        (Doubled(), False),  # nobody knows
    ],
)
def test_only_what_is_known_to_be_a_function_of_parameters_and_batch(made: Parameterization, stateless: bool) -> None:
    assert is_stateless(made) == stateless
