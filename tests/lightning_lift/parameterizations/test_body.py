import torch

from lightning_lift.parameterizations.body import DeepSetsBody, mean_features, pooled_mean, standardize_code


def test_body_has_a_relu_after_each_layer_and_the_reference_widths() -> None:
    body = DeepSetsBody(3, (64, 64, 96))
    features = body(torch.randn(50, 3))
    assert features.shape == (50, 96)
    assert (features >= 0).all()
    assert sum(p.numel() for p in body.parameters()) == (3 + 1) * 64 + 65 * 64 + 65 * 96


def test_standardised_code_has_mean_zero_and_unit_spread() -> None:
    code = standardize_code(5.0 + 3.0 * torch.randn(96, dtype=torch.float64))
    torch.testing.assert_close(code.mean(), torch.zeros((), dtype=torch.float64), rtol=0.0, atol=1e-12)
    assert abs(float(code.std()) - 1.0) < 1e-4


def test_pooling_in_one_process_is_the_mean() -> None:
    features = torch.randn(7, 5)
    assert torch.equal(pooled_mean(features), features.sum(0) / 7)


def test_mean_features_weighs_rows_not_batches() -> None:
    body, rows = DeepSetsBody(1, (4,)), torch.randn(10, 1)
    torch.testing.assert_close(mean_features(body, [rows[:1], rows[1:]]), body(rows).mean(0).detach())
