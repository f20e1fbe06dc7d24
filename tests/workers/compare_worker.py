"""Runs a small comparison, of stand-in runs or of real ones, on two worker processes; started as a script."""

import sys
from pathlib import Path

from lightning_lift.compare.arms import parse_arms
from lightning_lift.compare.comparison import PairedComparison
from lightning_lift.compare.directory import sole_user
from lightning_lift.compare.engines import Work
from lightning_lift.compare.engines.local import LocalEngine
from lightning_lift.compare.engines.progress import RunProgress
from lightning_lift.compare.plan import Settings
from lightning_lift.settings import read_config
from tests.workers.compare_runs import MODULE

CONFIG = Path(__file__).parents[2] / "configs" / "ebm_gumbel.yaml"


def comparison(directory: Path, kind: str) -> PairedComparison:
    """Two arms, two rates.

    Args:
        directory: where everything goes.
        kind: ``fake`` or ``real``.
    """
    config = read_config(CONFIG, ["--data.num_val=64", "--data.num_test=64", "--data.num_calibration=64"])
    del config["compare"]
    settings = Settings(
        config=config,
        arms=parse_arms("pgd,direct"),
        seeds=(0, 1, 2),
        steps=20,
        learning_rates=(1e-3, 3e-3),
        tuning_seeds=2,
        checkpoint_every=10,
    )
    fake = Work(str(directory), f"{MODULE}:run")
    return PairedComparison(settings, directory, "killed", fake if kind == "fake" else None)


def main(directory: Path, kind: str) -> None:
    """Runs what is missing.

    Args:
        directory: of the comparison.
        kind: ``fake`` or ``real``.
    """
    with sole_user(directory), RunProgress() as progress, LocalEngine(2) as engine:
        small = comparison(directory, kind)
        small.open()
        small.run(engine, progress)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
