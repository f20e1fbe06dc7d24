"""HEPMASS: 21 features of simulated particle collisions, from the published files, or a stand-in of known density."""

import math
import os
from pathlib import Path
from typing import Literal

import numpy as np
from torch import Tensor

from lightning_lift.datamodules import hepmass_files
from lightning_lift.datamodules.array_cache import Arrays
from lightning_lift.datamodules.in_memory import check_counts
from lightning_lift.datamodules.maf_archive import Form, TableSource, open_parts
from lightning_lift.datamodules.published import Floats, PublishedTable, cut_off_last
from lightning_lift.datamodules.seeding import generator_at, stream_seed
from lightning_lift.datamodules.simulated_hepmass import SimulatedHEPMASS

COUNTS = (315_123, 35_013, 174_987)
"""Rows of the published training, validation and test splits."""

_VERSION = 2  # of the reader: a change of what it gives makes old caches useless


class HEPMASSDataModule(PublishedTable):
    """HEPMASS, 21 columns.

    ``source: files`` reads the signal rows (label 1) of the published files as for masked autoregressive flows
    (Papamakarios et al., NeurIPS 2017): the first 700,000 and 350,000 rows of the mass-1000 files; the feature f26 and
    the five with repeated smallest values (number of jets, b-tags) left out; mean 0 and standard deviation 1 (divisor
    N - 1) of all signal training rows; the last tenth of those for validation; no shuffling. 315,123 training, 35,013
    validation and 174,987 test rows. The density is unknown.

    ``source: simulated`` is no HEPMASS data but a stand-in of known density and entropy, named so in every result: a
    Gaussian copula with uniform angles, cut pseudorapidities, log momenta cut from below and right-skewed masses
    (:class:`SimulatedHEPMASS`). Its support is stated as the whole space, as for the real rows, whose limits nobody
    tells a model, although its density is 0 beyond the cuts.

    Args:
        source: ``simulated``, or ``files``.
        path: For ``files``: a folder with ``1000_train.csv`` and ``1000_test.csv`` (also .gz; also below it, as the
            archive unpacks), or with the archive ``data.tar.gz``, or one of these files, or UCI's ``hepmass.zip``; the
            files ``all_train.csv`` and ``all_test.csv`` give their rows of mass 1000. Without labels: one .csv (or
            .csv.gz) file.
        labelled: Whether rows begin with a label. False for one file of rows of the 27 features: all its rows are used,
            the last tenth for the test and the last tenth of the others for validation.
        download: Whether to download the archive (857 MB, continued if interrupted, MD5 checked) into the folder
            ``path`` if the files are not there.
        benchmark: Whether labelled files must be those of the published splits (checksum of the archive, numbers of
            rows).
        cache_folder: Where the rows are kept once they are read. None to read them each time.
        num_train: Training rows of ``simulated``. None for as many as the published split has.
        num_val: Validation rows of ``simulated``. None for 10,000.
        num_test: Test rows of ``simulated``. None for 20,000.
        batch_size: Rows of one process's training batch.
        data_seed: Seed of everything random in the data.
        eval_batch_size: Rows of one process's batch in evaluation. None for the larger of ``batch_size`` and 1024.

    Raises:
        ValueError: If an argument is out of range or does not belong to the source.
    """

    def __init__(
        self,
        source: Literal["files", "simulated"] = "simulated",
        path: str = "data/maf",
        labelled: bool = True,
        download: bool = False,
        benchmark: bool = True,
        cache_folder: str | None = "data/cache",
        num_train: int | None = None,
        num_val: int | None = None,
        num_test: int | None = None,
        batch_size: int = 256,
        data_seed: int = 0,
        eval_batch_size: int | None = None,
    ) -> None:
        path = os.fspath(path)
        numbers = {"num_train": num_train, "num_val": num_val, "num_test": num_test}
        check_counts(**numbers)
        if source not in ("files", "simulated"):
            raise ValueError(f"source must be 'files' or 'simulated', got {source!r}")
        if source == "files" and (given := [key for key, value in numbers.items() if value is not None]):
            raise ValueError(f"{given} belong to source 'simulated': the files have their own splits")
        if source == "simulated" and (download or not labelled):
            raise ValueError("download: true and labelled: false belong to source 'files', got source 'simulated'")
        if not labelled and (download or Path(path).is_dir() or not path.endswith((".csv", ".csv.gz"))):
            raise ValueError(f"labelled: false reads one .csv or .csv.gz file, without download; got path {path!r}")
        forms: tuple[Form, ...] = hepmass_files.FORMS if labelled else ({"rows": Path(path).name.removesuffix(".gz")},)
        super().__init__(
            dim=len(hepmass_files.COLUMNS),
            name=_name(source, labelled, benchmark),
            folder="hepmass",
            forms=forms,
            path=path,
            download=download,
            benchmark=benchmark and labelled,
            counts=COUNTS,
            cache_folder=cache_folder,
            settings=(_VERSION, labelled),
            zip_name="hepmass.zip",
            batch_size=batch_size,
            data_seed=data_seed,
            eval_batch_size=eval_batch_size,
        )
        self.columns = list(hepmass_files.COLUMNS)
        self.labelled = labelled
        self._simulated = SimulatedHEPMASS() if source == "simulated" else None
        self.has_log_prob = self._simulated is not None
        self._num_rows = (num_train or COUNTS[0], num_val or 10_000, num_test or 20_000)
        if self._simulated is not None:
            self.set_standardization(self._simulated.location, self._simulated.scale)
        self.save_hyperparameters()

    def missing(self) -> str:
        """Return the words of the error when no files are found."""
        return super().missing() if self.labelled else f"no file {self.path!r} with rows of the features f0 to f26"

    def prepare_data(self) -> None:
        """Download and read the files, if they are the source; on one process of each machine."""
        if self._simulated is None:
            super().prepare_data()

    def load(self) -> dict[str, Tensor]:
        """Read, or draw, the rows.

        Returns:
            The splits ``train``, ``val`` and ``test``.

        Raises:
            FileNotFoundError: If the files are not there; the message says where to get them.
            ValueError: If they are damaged or are not the published ones.
        """
        if self._simulated is None:
            return super().load()
        splits = {
            key: self._simulated.draw(count, generator_at(stream_seed(self.data_seed, "split", position), 0))
            for position, (key, count) in enumerate(zip(("train", "val", "test"), self._num_rows, strict=True))
        }
        self.set_open_range(splits["train"])
        return splits

    def read(self, source: TableSource) -> Arrays:
        """Read the 21 columns of the splits."""
        parts: Arrays = {}
        with open_parts(source, hepmass_files.LARGEST) as contents:
            for part, content in contents:
                label = f"{self.path}: {Path(source.names[part]).name}"
                limit = hepmass_files.FIRST_ROWS[part] if self.labelled else None
                parts[part] = hepmass_files.read_features(content, label, self.labelled, limit)
        if self.labelled:
            train, test = parts["train"], parts["test"]
        else:
            train, test = cut_off_last(parts["rows"])
        kept = hepmass_files.check_columns(train, self.path)
        rest, val = cut_off_last(train[:, kept])
        return {"train": rest, "val": val, "test": test[:, kept]}

    def statistics(self, splits: Arrays) -> tuple[Floats, Floats]:
        """Return mean and standard deviation of the training and validation rows together."""
        rows = np.concatenate([splits["train"], splits["val"]])
        return rows.mean(axis=0), rows.std(axis=0, ddof=1)

    def log_prob(self, x: Tensor) -> Tensor:
        """Return the true log-density of ``simulated`` in training units (N,), -inf outside its support."""
        return super().log_prob(x) if self._simulated is None else self._simulated.log_prob(x)

    @property
    def entropy(self) -> float | None:
        """Differential entropy of ``simulated`` in nats, in training units, in closed form; None for the files."""
        return None if self._simulated is None else self._simulated.entropy

    @property
    def entropy_error(self) -> float:
        """0 for ``simulated``, NaN for the files."""
        return math.nan if self._simulated is None else 0.0


def _name(source: str, labelled: bool, benchmark: bool) -> str:
    if source == "simulated":
        return "HEPMASS (simulated)"
    if not labelled:
        return "HEPMASS (unlabelled rows)"
    return "HEPMASS" if benchmark else "HEPMASS (not the published splits)"
