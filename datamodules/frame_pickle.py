"""Reading the numbers of a pickled pandas frame without executing what the file asks for.

A pickle is a program: loading one from the internet runs whatever its author wished. Here only NumPy arrays are made;
everything of pandas becomes an inert record, from which the blocks of numbers and the column names are taken. Any other
name in the file is an error. As no pandas code runs, frames written by long-gone versions of pandas can be read, too.
"""

import pickle
from collections.abc import Callable
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt
import pandas as pd

_ARRAY_MODULES = [f"numpy.{core}.{module}" for core in ("core", "_core") for module in ("multiarray", "numeric")]


def read_frame(file: IO[bytes], source: str) -> pd.DataFrame:
    """Reads a pickled frame of numbers.

    Args:
        file: The pickle, uncompressed; of any protocol, also written by Python 2.
        source: What the file is called in error messages.

    Returns:
        A frame of float64 columns with the names and order of the pickled one, and rows numbered from 0.

    Raises:
        ValueError: If the file asks for anything but arrays and pandas records, holds no frame of numbers, or is
            damaged.
    """
    target = f"{source.removesuffix('.pickle')}.parquet"
    try:
        record = _Restricted(file, encoding="latin1").load()
        return _frame(record)
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise ValueError(
            f"{source!r} cannot be read as a frame of numbers ({error}). It is a pickle, of which nothing but plain "
            "numbers is read and nothing is executed. If you trust the file, convert it yourself, with\n"
            f'  python -c "import pandas; pandas.read_pickle({source!r}).to_parquet({target!r})"\n'
            "and put the new file in its place"
        ) from error


class _Record:
    """Stands for an object of pandas: its class's name, what it was made from and what was put into it."""

    origin = ""

    def __new__(cls, *args: Any, **kwargs: Any) -> "_Record":
        record = super().__new__(cls)
        record.args, record.state, record.items = args, None, []
        return record

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args: tuple[Any, ...]
        self.state: Any
        self.items: list[Any]

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, item: Any) -> None:
        self.items.append(item)

    def extend(self, items: Any) -> None:
        self.items.extend(items)


class _Restricted(pickle.Unpickler):
    """An unpickler that knows arrays and records only."""

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "pandas":
            return type(name, (_Record,), {"origin": f"{module}.{name}"})
        known = _KNOWN.get((_ALIASES.get(module, module), name))
        if known is None:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return known

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to objects outside the file")


def _reconstructor(cls: Any, base: Any, state: Any) -> _Record:
    """What Python 2 made plain objects by; only records are."""
    if not (isinstance(cls, type) and issubclass(cls, _Record)):
        raise pickle.UnpicklingError(f"it makes an object of {cls!r}")
    return cls()


def _encode(text: str, encoding: str) -> bytes:
    """How protocol 2 writes bytes."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it asks for the codec {encoding!r}")
    return text.encode("latin1")


_ALIASES = {"__builtin__": "builtins", "copy_reg": "copyreg", **dict.fromkeys(_ARRAY_MODULES, "numpy")}
_ARRAY = np.zeros((1, 1))
_KNOWN: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    # the functions that NumPy's own pickles name, whatever private module they live in
    ("numpy", "_reconstruct"): cast(Callable[..., Any], _ARRAY.__reduce__()[0]),
    ("numpy", "_frombuffer"): cast(Callable[..., Any], _ARRAY.__reduce_ex__(5)[0]),
    ("numpy", "scalar"): cast(Callable[..., Any], np.float64(0.0).__reduce__()[0]),
    ("builtins", "slice"): slice,
    ("builtins", "object"): object,
    ("copyreg", "_reconstructor"): _reconstructor,
    ("_codecs", "encode"): _encode,
}


def _frame(record: Any) -> pd.DataFrame:
    """Puts a frame together from the record of its block manager."""
    if not isinstance(record, _Record) or type(record).__name__ != "DataFrame":
        raise ValueError(f"it holds {type(record).__name__}, no DataFrame")
    state = record.state
    manager = state if isinstance(state, _Record) else state.get("_mgr", state.get("_data"))
    if manager.state is not None:  # pandas below 1.3 writes a state, with the newest layout of it at the end
        layout = manager.state[3]["0.14.1"]
        axes, blocks = layout["axes"], [(block["values"], block["mgr_locs"]) for block in layout["blocks"]]
    else:
        blocks, axes = [block.args[:2] for block in manager.args[0]], manager.args[1]
    names = _labels(axes[0])
    columns: list[npt.NDArray[np.float64] | None] = [None] * len(names)
    for values, places in blocks:
        if not isinstance(values, np.ndarray) or values.dtype.kind not in "fiu" or values.ndim != 2:
            raise ValueError(f"a block of columns is not numbers but {getattr(values, 'dtype', type(values).__name__)}")
        positions = np.arange(len(names))[places]
        if len(positions) != len(values):
            raise ValueError(f"a block of {len(values)} columns belongs to {len(positions)} places")
        for position, column in zip(positions, values, strict=True):
            columns[position] = column.astype(np.float64)
    if missing := [name for name, column in zip(names, columns, strict=True) if column is None]:
        raise ValueError(f"the columns {missing} have no values")
    return pd.DataFrame(dict(zip(names, columns, strict=True)))


def _labels(index: Any) -> list[str]:
    data = index.args[1]["data"]
    if isinstance(data, _Record) and data.state is not None:  # an extension array around an array of objects
        parts = data.state if isinstance(data.state, tuple) else tuple(data.state.values())
        data = next(part for part in parts if isinstance(part, np.ndarray))
    names = [str(name) for name in np.asarray(data).tolist()]
    if len(set(names)) < len(names):
        raise ValueError(f"column names occur more than once: {names}")
    return names
