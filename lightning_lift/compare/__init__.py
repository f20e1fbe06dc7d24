"""Paired comparisons of parameterizations: one plan of runs, records on disk, statistics and a report."""

from lightning_lift.compare.arms import Arm, parse_arm, parse_arms
from lightning_lift.compare.build import make
from lightning_lift.compare.comparison import PairedComparison
from lightning_lift.compare.directory import sole_user
from lightning_lift.compare.engines.local import LocalEngine
from lightning_lift.compare.engines.progress import RunProgress
from lightning_lift.compare.plan import Settings
from lightning_lift.compare.records import RecordStore, RunRecord, RunSpec
from lightning_lift.compare.specification import resolve
from lightning_lift.settings import read_config

__all__ = [
    "Arm",
    "LocalEngine",
    "PairedComparison",
    "RecordStore",
    "RunProgress",
    "RunRecord",
    "RunSpec",
    "Settings",
    "make",
    "parse_arm",
    "parse_arms",
    "read_config",
    "resolve",
    "sole_user",
]
