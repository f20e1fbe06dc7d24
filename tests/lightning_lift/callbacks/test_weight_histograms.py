from pathlib import Path

import pytest

from lightning_lift.callbacks import WeightHistograms
from tests.lightning_lift.callbacks.runs import PARAMETERIZATIONS, events, make_trainer, small_data, small_model


@pytest.mark.parametrize("name", PARAMETERIZATIONS)
def test_histograms_cover_every_weight(name: str, tmp_path: Path) -> None:
    model = small_model(PARAMETERIZATIONS[name])
    make_trainer(tmp_path, [WeightHistograms(10)]).fit(model, small_data())
    log = events(tmp_path)
    groups = ["weights"] if name == "pgd" else ["latent", "weights"]
    expected = {f"{group}/{tensor}" for group in groups for tensor in model.parameterization.names}
    assert set(log.Tags()["histograms"]) == expected
    for tag in expected:
        histograms = log.Histograms(tag)
        assert [event.step for event in histograms] == [0, 10, 20]
        size = model.parameterization.shapes[tag.partition("/")[2]].numel()
        assert histograms[-1].histogram_value.num == size
        if tag.startswith("weights"):
            assert histograms[-1].histogram_value.min >= 0.0


def test_without_tensorboard_nothing_happens(tmp_path: Path) -> None:
    make_trainer(tmp_path, [WeightHistograms(10)], loggers=False).fit(small_model(), small_data())
