"""Paired comparisons of parameterizations: one plan of runs, records on disk, statistics and a report."""

from lightning_lift.compare.record import RecordStore, RunRecord, RunSpec

__all__ = ["RecordStore", "RunRecord", "RunSpec"]
