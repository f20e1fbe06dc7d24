"""One Gaussian of the same training rows: what a density of a table has to beat."""

import torch
from sklearn.covariance import LedoitWolf
from torch import Tensor
from torch.distributions import MultivariateNormal


def best_gaussian(train: Tensor, val: Tensor) -> MultivariateNormal | None:
    """The maximum-likelihood Gaussian, or that of Ledoit and Wolf, whichever is better on the validation rows.

    With few rows a column the covariance of maximum likelihood is nearly singular; Ledoit & Wolf (A well-conditioned
    estimator for large-dimensional covariance matrices, 2004) shrink it.

    Args:
        train: rows (N, D).
        val: rows (M, D).

    Returns:
        The density in float64, or None where the training rows have no invertible covariance of either kind.
    """
    train, val = train.detach().cpu().double(), val.detach().cpu().double()
    shrunk = LedoitWolf().fit(train.numpy())
    covariances = [torch.cov(train.T, correction=0).reshape(train.shape[1], -1), torch.from_numpy(shrunk.covariance_)]
    candidates = []
    for covariance in covariances:
        factor, failed = torch.linalg.cholesky_ex(covariance)
        if not failed:
            candidates.append(MultivariateNormal(train.mean(0), scale_tril=factor))
    return max(candidates, key=lambda gaussian: float(gaussian.log_prob(val).mean()), default=None)
