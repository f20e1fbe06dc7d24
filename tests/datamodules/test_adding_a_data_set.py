"""The code of docs/adding_a_data_set.md runs and does what it says."""

import re
from pathlib import Path

import pytest
import torch
import yaml

from lightning_lift import datamodules
from lightning_lift.datamodules import DensityDataModule

PAGE = (Path(__file__).parents[2] / "docs" / "adding_a_data_set.md").read_text()


def classes() -> dict[str, type[DensityDataModule]]:
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL):
        exec(compile(block, "adding_a_data_set.md", "exec"), names)
    return {key: value for key, value in names.items() if key in ("LogisticDataModule", "ParabolaDataModule")}


def test_the_sampled_target() -> None:
    data = classes()["LogisticDataModule"](num_test=20000)
    log_density = data.log_prob(data.split("test").double())
    error = float(log_density.std()) / 20000**0.5
    assert abs(float(-log_density.mean()) - data.entropy) < 4 * error
    assert data._integrated()[0] == pytest.approx(2.0, abs=1e-9)


def test_the_fixed_set() -> None:
    data = classes()["ParabolaDataModule"]()
    assert [len(data.split(key)) for key in ("train", "val", "test")] == [1600, 200, 200]
    assert next(iter(data.train_dataloader())).shape == (128, 2)
    assert dict(data.hparams) == {"num_rows": 2000, "batch_size": 128, "data_seed": 0}
    inside = (data.split("train") >= data.window[0]) & (data.split("train") <= data.window[1])
    assert float(inside.all(dim=1).double().mean()) > 0.99
    assert torch.isinf(data.support).all()


def test_the_configuration_names_real_arguments() -> None:
    import inspect

    block = yaml.safe_load(re.search(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL).group(1))["data"]
    assert set(block["init_args"]) <= set(inspect.signature(getattr(datamodules, block["class_path"])).parameters)
