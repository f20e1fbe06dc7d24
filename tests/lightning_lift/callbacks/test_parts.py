"""Every callback on a lift whose batches have x, a context of two dimensions and a target."""

import functools
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from lightning_lift.callbacks import (
    CrossCovariance,
    DensityFigure,
    FlowFigure,
    LatentStep,
    PredictionWriter,
    RunSummary,
    SampleDistance,
    ShoulderOccupancy,
    ShoulderVisits,
    TrailingCrossCovariance,
    UpdateNoise,
    WeightHistograms,
)
from lightning_lift.datamodules import PairsDataModule
from lightning_lift.networks import ICNN
from tests.lightning_lift.callbacks.runs import PARAMETERIZATIONS, events, make_trainer
from tests.lightning_lift.modules.test_parts import Conditional, Pairs, Shifted, quiet, triples


def test_every_callback_looks_at_a_lift_or_says_why_not(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = functools.partial(Shifted, widths=(8,))
    module = Conditional(2, network=network, parameterization=PARAMETERIZATIONS["lift"], learning_rate=1e-2)
    looks = [
        ShoulderOccupancy(4),
        ShoulderVisits(4),
        CrossCovariance(8, num_batches=4, num_permutations=9),
        TrailingCrossCovariance(8, window=6, num_permutations=9),
        UpdateNoise(8, num_batches=4),
        WeightHistograms(8),
        LatentStep(4),
        RunSummary(),
    ]
    figures = [DensityFigure(1), FlowFigure(every_n_steps=1), SampleDistance(8)]
    trainer = make_trainer(tmp_path, [*looks, *figures], max_steps=9, log_every_n_steps=1)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trainer.fit(module, datamodule=triples())
        trainer.test(module, datamodule=triples(), verbose=False)
    told = " ".join(str(warning.message) for warning in said)
    assert all(f"{type(figure).__name__}: " in told for figure in figures)
    written = events(tmp_path)
    tags = written.Tags()["scalars"]
    for tag in ("shoulder/occupancy", "latent/step", "cross_covariance/total_norm", "update_noise/gradient/total"):
        assert any(found.startswith(tag.rpartition("/")[0]) for found in tags), (tag, tags)
    for tag in tags:
        assert all(np.isfinite(scalar.value) for scalar in written.Scalars(tag)), tag


def test_predictions_have_the_columns_of_each_part_in_its_own_units(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal((20, 1e6, 3), (3, 10, 1), (60, 3)), columns=["price", "income", "sold"])
    data = PairsDataModule.from_arrays(frame[["price", "income"]], target=frame["sold"], batch_size=8)
    module = Pairs(2, network=functools.partial(ICNN, widths=(4,)), parameterization=PARAMETERIZATIONS["direct"])
    trainer = quiet(callbacks=[PredictionWriter(str(tmp_path / "p.csv"))], max_steps=2, default_root_dir=tmp_path)
    trainer.fit(module, datamodule=data)
    trainer.predict(module, datamodule=data)
    written = pd.read_csv(tmp_path / "p.csv")
    assert list(written) == ["row", "price", "income", "sold", "prediction"]
    expected = frame.iloc[written["row"]]
    np.testing.assert_allclose(written["price"], expected["price"], rtol=1e-6)
    np.testing.assert_allclose(written["income"], expected["income"], rtol=1e-6)
    np.testing.assert_allclose(written["sold"], expected["sold"], rtol=1e-5)
