"""A stand-in for HEPMASS with a known density: a Gaussian copula with parametric margins."""

import math

import torch
from torch import Tensor

from lightning_lift.datamodules.marginals import Marginal, ShiftedLogNormal, TruncatedNormal, Uniform

_PHI = Uniform(-math.sqrt(3.0), math.sqrt(3.0))

# Fitted by maximum likelihood to 1,000 rows of HEPMASS (UCI data set 347, CC BY 4.0), signal and background mixed, and
# rounded: numbers about those rows, none of the rows themselves. Angles phi are uniform; |eta| is cut by the detector;
# log momenta are cut from below by the trigger; masses are skewed to the right.
MARGINALS: dict[str, Marginal] = {
    "lepton_pt": TruncatedNormal(-0.07, 1.14, low=-1.95),
    "lepton_eta": TruncatedNormal(0.0, 1.08, low=-2.37, high=2.37),
    "lepton_phi": _PHI,
    "missing_energy": TruncatedNormal(0.05, 0.94),
    "missing_energy_phi": _PHI,
    "jet1_pt": TruncatedNormal(0.06, 1.00, low=-1.95),
    "jet1_eta": TruncatedNormal(0.0, 1.01, low=-2.61, high=2.61),
    "jet1_phi": _PHI,
    "jet2_pt": TruncatedNormal(0.05, 1.02, low=-2.23),
    "jet2_eta": TruncatedNormal(0.0, 1.03, low=-2.61, high=2.61),
    "jet2_phi": _PHI,
    "jet3_pt": TruncatedNormal(0.07, 1.09, low=-2.14),
    "jet3_eta": TruncatedNormal(0.0, 1.10, low=-2.42, high=2.42),
    "jet3_phi": _PHI,
    "jet4_pt": TruncatedNormal(-0.19, 1.19, low=-1.73),
    "jet4_eta": TruncatedNormal(0.0, 1.06, low=-2.28, high=2.28),
    "jet4_phi": _PHI,
    "m_jj": ShiftedLogNormal(-5.14, 5.09, 0.20),
    "m_jjj": ShiftedLogNormal(-2.07, 1.96, 0.42),
    "m_lv": ShiftedLogNormal(-1.04, 0.89, 0.54),
    "m_jlv": ShiftedLogNormal(-1.82, 1.64, 0.51),
}
"""Margins of the 21 columns, in the units of the published files."""

# Correlations of the normal scores of the same rows, rounded; those below 0.1 in size (3 standard errors) are left out.
_CORRELATIONS: dict[str, dict[str, float]] = {
    "lepton_pt": {"jet1_pt": 0.29, "jet2_pt": 0.11, "m_lv": 0.13, "m_jlv": 0.25},
    "lepton_eta": {"jet1_eta": 0.31, "jet2_eta": 0.31, "jet3_eta": 0.19, "jet4_eta": 0.16},
    "lepton_phi": {"missing_energy_phi": 0.15, "jet1_phi": -0.17},
    "missing_energy": {
        "jet1_pt": 0.38,
        "jet2_pt": 0.22,
        "jet3_pt": 0.20,
        "jet4_pt": 0.13,
        "m_jj": 0.11,
        "m_jjj": 0.14,
        "m_jlv": 0.26,
    },
    "missing_energy_phi": {"jet1_phi": -0.16},
    "jet1_pt": {"jet2_pt": 0.76, "jet3_pt": 0.57, "jet4_pt": 0.37, "m_jj": 0.22, "m_jjj": 0.41, "m_jlv": 0.50},
    "jet1_eta": {"jet2_eta": 0.30, "jet3_eta": 0.36, "jet4_eta": 0.26},
    "jet1_phi": {"jet2_phi": -0.19},
    "jet2_pt": {"jet3_pt": 0.75, "jet4_pt": 0.50, "m_jj": 0.24, "m_jjj": 0.43, "m_jlv": 0.33},
    "jet2_eta": {"jet3_eta": 0.25, "jet4_eta": 0.27},
    "jet3_pt": {"jet4_pt": 0.68, "m_jj": 0.30, "m_jjj": 0.41, "m_jlv": 0.23},
    "jet3_eta": {"jet4_eta": 0.18},
    "jet4_pt": {"m_jj": 0.25, "m_jjj": 0.29, "m_jlv": 0.10},
    "m_jj": {"m_jjj": 0.61, "m_jlv": 0.11},
    "m_jjj": {"m_jlv": 0.21},
}


class SimulatedHEPMASS:
    """The joint distribution: normal scores Z ~ N(0, R), columns x_j = quantile_j(Z_j), then mean 0 and variance 1.

    Its log-density is that of a Gaussian copula (Song, 2000) with margins f_j:
    log p(x) = sum_j log f_j(x_j) - (log det R + z^T (R^-1 - I) z)/2 with z_j = score_j(x_j); its entropy is
    (log det R)/2 + the sum of the margins' entropies. Everything is computed in float64, on the CPU where a device has
    no float64.

    Attributes:
        columns: Names of the 21 columns.
        location: Exact means (21,), in the units of the published files, float64.
        scale: Exact standard deviations (21,), float64.
    """

    def __init__(self) -> None:
        self.columns = list(MARGINALS)
        self._marginals = list(MARGINALS.values())
        dim = len(self.columns)
        correlation = torch.eye(dim, dtype=torch.float64)
        for one, others in _CORRELATIONS.items():
            for other, value in others.items():
                i, j = self.columns.index(one), self.columns.index(other)
                correlation[i, j] = correlation[j, i] = value
        self._factor = torch.linalg.cholesky(correlation)
        self._log_det = 2.0 * float(self._factor.diagonal().log().sum())
        self._excess_precision = torch.cholesky_inverse(self._factor) - torch.eye(dim, dtype=torch.float64)
        self.location = torch.tensor([marginal.mean for marginal in self._marginals], dtype=torch.float64)
        self.scale = torch.tensor([marginal.variance for marginal in self._marginals], dtype=torch.float64).sqrt()
        ends = torch.tensor([marginal.ends for marginal in self._marginals], dtype=torch.float64)
        self._low, self._high = (ends - self.location[:, None]).div(self.scale[:, None]).unbind(dim=1)

    @property
    def dim(self) -> int:
        """Number of columns, 21."""
        return len(self.columns)

    @property
    def entropy(self) -> float:
        """Differential entropy in nats, in training units (mean 0, variance 1), in closed form."""
        marginal = sum(marginal.entropy for marginal in self._marginals)
        return marginal + 0.5 * self._log_det - float(self.scale.log().sum())

    def draw(self, num_rows: int, generator: torch.Generator) -> Tensor:
        """Draw rows exactly.

        Args:
            num_rows: How many.
            generator: The only source of randomness, on the CPU.

        Returns:
            Rows (num_rows, 21) float32 in training units, inside the support also after rounding.
        """
        scores = torch.randn(num_rows, self.dim, generator=generator, dtype=torch.float64) @ self._factor.T
        columns = [marginal.quantile(z) for marginal, z in zip(self._marginals, scores.unbind(dim=1), strict=True)]
        rows = ((torch.stack(columns, dim=1) - self.location) / self.scale).to(torch.float32)
        low, high = _inside(self._low, math.inf), _inside(self._high, -math.inf)
        return rows.clamp(low, high)

    def log_prob(self, x: Tensor) -> Tensor:
        """Return the log-density in training units, -inf outside the support.

        Args:
            x: Points (N, 21), in training units.

        Returns:
            Log-densities (N,), in the dtype and on the device of ``x``.
        """
        points = (x.cpu() if x.device.type == "mps" else x).to(torch.float64)
        low, high, location, scale = (t.to(points.device) for t in (self._low, self._high, self.location, self.scale))
        outside = ((points < low) | (points > high) | points.isinf()).any(dim=1)
        inside = torch.where(outside[:, None], torch.zeros_like(points), points)
        values = (location + scale * inside).unbind(dim=1)
        scores = torch.stack([m.score(value) for m, value in zip(self._marginals, values, strict=True)], dim=1)
        margins = sum(
            (m.log_density(value) for m, value in zip(self._marginals, values, strict=True)), scale.log().sum()
        )
        copula = -0.5 * (self._log_det + ((scores @ self._excess_precision.to(points.device)) * scores).sum(dim=1))
        return (margins + copula).masked_fill(outside, -math.inf).to(x)


def _inside(ends: Tensor, direction: float) -> Tensor:
    """Round ends (D,) to float32 towards the inside of the support."""
    rounded = ends.to(torch.float32)
    beyond = rounded < ends if direction > 0 else rounded > ends
    return torch.where(beyond, torch.nextafter(rounded, torch.full_like(rounded, direction)), rounded)
