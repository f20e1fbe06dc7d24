"""Paired comparisons of parameterizations: one plan of runs, records on disk, statistics and a report."""

from lightning_lift.compare.arms import Arm, parse_arm, parse_arms
from lightning_lift.compare.build import make, read_config, resolve
from lightning_lift.compare.comparison import PairedComparison
from lightning_lift.compare.directory import sole_user
from lightning_lift.compare.local_engine import LocalEngine
from lightning_lift.compare.plan import Settings
from lightning_lift.compare.progress import RunProgress
from lightning_lift.compare.record import RecordStore, RunRecord, RunSpec
from lightning_lift.compare.vectorized import NotVectorizable, run_vectorized

__all__ = [
    "Arm",
    "LocalEngine",
    "NotVectorizable",
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
    "run_vectorized",
    "sole_user",
]
