"""What the package ships under names: configurations by bare name, class paths of earlier versions."""

from pathlib import Path

import pytest

import lightning_lift
from lightning_lift.shipped import configuration, configurations, current_class_path, current_class_paths


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("datamodules.GumbelDataModule", "lightning_lift.datamodules.GumbelDataModule"),
        ("datamodules.gumbel.GumbelDataModule", "lightning_lift.datamodules.GumbelDataModule"),
        ("datamodules.autoencoder.ConvAutoencoder", "lightning_lift.datamodules.ConvAutoencoder"),
        ("lightning_lift.partition.no_such_file.Quadrature", "lightning_lift.partition.Quadrature"),
        ("lightning_lift.modules.energy.LogConcaveEBM", "lightning_lift.LogConcaveEBM"),
        ("lightning_lift.modules.ReLUMLP", "lightning_lift.modules.ReLUMLP"),
        ("lightning_lift.modules.relu_networks.ReLUMLP", "lightning_lift.modules.relu_networks.ReLUMLP"),
        ("datamodules.MyDataModule", "datamodules.MyDataModule"),  # a user's own package of that name
        ("datamodules.gumbel.MyGumbel", "datamodules.gumbel.MyGumbel"),
        ("datamodules.mine.GumbelDataModule", "datamodules.mine.GumbelDataModule"),
        ("my.datamodules.GumbelDataModule", "my.datamodules.GumbelDataModule"),
        ("some text. With stops.", "some text. With stops."),
        ("rows.csv", "rows.csv"),
    ],
)
def test_class_paths_of_earlier_versions(old: str, new: str) -> None:
    assert current_class_path(old) == new


def test_every_class_that_version_0_1_shipped_is_found() -> None:
    from lightning_lift import datamodules, shipped

    for name, module in shipped._DATAMODULES.items():
        assert hasattr(datamodules, current_class_path(f"datamodules.{module}.{name}").rpartition(".")[2]), name


def test_class_paths_anywhere_in_settings() -> None:
    settings = {"data": {"class_path": "datamodules.RingsDataModule", "init_args": {"n": 3}}, "other": [None, "x.Y"]}
    new = {**settings, "data": {"class_path": "lightning_lift.datamodules.RingsDataModule", "init_args": {"n": 3}}}
    assert current_class_paths(settings) == new


def test_configurations_are_those_of_the_repository() -> None:
    folder = Path(lightning_lift.__file__).parent.parent / "configs"
    assert configurations() == sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.yaml"))


def test_a_configuration_by_its_name_unless_a_file_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("ebm_gumbel.yaml", "parameterization/pgd.yaml"):
        assert Path(configuration(name)).is_absolute() and Path(configuration(name)).is_file()
    assert configuration("mine.yaml") == "mine.yaml"
    Path("ebm_gumbel.yaml").write_text("{}")
    assert configuration("ebm_gumbel.yaml") == "ebm_gumbel.yaml"
