"""What the package ships under names: its configurations, and the classes that earlier versions called otherwise."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning_lift import __all__

_ROOT = Path(__file__).parent
CONFIGS = _ROOT / "configs"

# What version 0.1 exported from a top-level package `datamodules`, by module and class.
_OLD = """
autoencoder.ConvAutoencoder base.DensityDataModule beta.BetaDataModule checkerboard.CheckerboardDataModule
cifar10.CIFAR10DataModule correlated_gaussian.CorrelatedGaussianDataModule eight_gaussians.EightGaussiansDataModule
gamma.GammaDataModule gumbel.GumbelDataModule half_normal.HalfNormalDataModule hepmass.HEPMASSDataModule
labelled.LabelledDataModule laplace.LaplaceDataModule loading.BatchLoader maf_table.MAFTableDataModule
mnist.MNISTDataModule mnist_latents.MNISTLatentsDataModule moons.MoonsDataModule
one_dimensional.OneDimensionalDataModule pinwheel.PinwheelDataModule product.ProductDataModule rings.RingsDataModule
sampled.SampledDataModule skew_normal.SkewNormalDataModule swiss_roll.SwissRollDataModule tabular.TabularDataModule
two_moons.TwoMoonsDataModule two_spirals.TwoSpiralsDataModule
"""
_DATAMODULES = {name: module for module, _, name in (path.partition(".") for path in _OLD.split())}


def current_class_path(path: str) -> str:
    """The import path of today of a class that an earlier version of this package named.

    Version 0.1 imported its data modules from a top-level package ``datamodules``. What it shipped there is ours; any
    other ``datamodules.X`` is a user's own package and stays as it is, so no class is ever imported a second time. What
    ``lightning_lift`` itself offers is named there; a class of ours whose file has been renamed is found in the package
    around it.

    Args:
        path: any text, such as ``datamodules.gumbel.GumbelDataModule``.
    """
    package, _, name = path.rpartition(".")
    if name in _DATAMODULES and package in ("datamodules", f"datamodules.{_DATAMODULES[name]}"):
        return f"lightning_lift.datamodules.{name}"
    # no other text is looked for: "lightning_lift./tmp/x" would be a path outside
    if not package.startswith("lightning_lift.") or not all(part.isidentifier() for part in path.split(".")):
        return path
    if name in __all__:
        return f"lightning_lift.{name}"
    module = _ROOT.joinpath(*package.split(".")[1:])
    if module.is_dir() or module.with_suffix(".py").is_file() or not module.parent.is_dir():
        return path
    return f"{package.rpartition('.')[0]}.{name}"


def current_class_paths(settings: Any) -> Any:
    """Settings in which every class path is the one of today.

    Args:
        settings: plain data: mappings, lists and texts, such as a configuration or a checkpoint's hyperparameters.
    """
    if isinstance(settings, str):
        return current_class_path(settings)
    if isinstance(settings, Mapping):
        return {key: current_class_paths(value) for key, value in settings.items()}
    if isinstance(settings, list | tuple):
        return [current_class_paths(item) for item in settings]
    return settings


def configuration(name: str) -> str:
    """The path of a configuration: a file of the user's, or else the one that the package ships under this name.

    Args:
        name: a path, or a name such as ``ebm_gumbel.yaml`` or ``parameterization/pgd.yaml``.

    Returns:
        ``name`` itself where it exists, or where nothing of that name is shipped.
    """
    return str(CONFIGS / name) if not Path(name).exists() and name in configurations() else name


def configurations() -> list[str]:
    """The names of the configurations that the package ships, sorted."""
    return sorted(path.relative_to(CONFIGS).as_posix() for path in CONFIGS.rglob("*.yaml"))
