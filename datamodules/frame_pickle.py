"""Reading the numbers of a pickled pandas frame without executing what the file asks for.

A pickle is a program: loading one from the internet runs whatever its author wished. Here nothing of pandas or NumPy is
called: every object of theirs becomes an inert record, and the arrays are made afterwards, from records that hold plain
numbers. Any other name in the file is an error. No more memory is asked for than a few times the file's size. As no
pandas code runs, frames written by long-gone versions of pandas can be read, too.
"""

import io
import math
import pickle
import pickletools
import re
from typing import IO, Any, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd

LARGEST = 1_000_000_000
"""Bytes of the largest pickle that is read; the published one has about 160 million."""

_Array = npt.NDArray[np.generic]


def read_frame(file: IO[bytes], source: str) -> pd.DataFrame:
    """Read a pickled frame of numbers.

    Args:
        file: The pickle, uncompressed; of any protocol, also written by Python 2.
        source: What the file is called in error messages.

    Returns:
        A frame of float64 columns with the names and order of the pickled one, and rows numbered from 0.

    Raises:
        ValueError: If the file asks for anything but arrays and pandas records, holds no frame of numbers, is too large
            or is damaged.
    """
    target = f"{source.removesuffix('.pickle')}.parquet"
    try:
        content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise ValueError(f"it has more than {LARGEST:,} bytes")
        for _ in pickletools.genops(content):
            pass  # every count in it is a number of bytes that are there, before anything is made of that size
        return _frame(_Restricted(io.BytesIO(content), encoding="latin1").load(), len(content))
    except (
        *(pickle.UnpicklingError, EOFError, ValueError, TypeError, LookupError, AttributeError),
        *(ArithmeticError, MemoryError, RecursionError, ImportError),
    ) as error:
        raise ValueError(
            f"{source!r} cannot be read as a frame of numbers ({error}). It is a pickle, of which nothing but plain "
            "numbers is read and nothing is executed. If you trust the file, convert it yourself, with\n"
            f'  python -c "import pandas; pandas.read_pickle({source!r}).to_parquet({target!r})"\n'
            "and put the new file in its place"
        ) from error


class _Record:
    """Stands for an object: its class's name, what it was made from and what was put into it."""

    origin = ""

    def __new__(cls, *args: Any, **kwargs: Any) -> "_Record":
        record = super().__new__(cls)
        record.args, record.state = args, None
        return record

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args: tuple[Any, ...]
        self.state: Any

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, item: Any) -> None:
        pass

    def extend(self, items: Any) -> None:
        pass


# in Python, whose memo is a dictionary: the one in C makes an array as long as the largest number in the file
class _Restricted(pickle._Unpickler):
    """An unpickler that makes records only."""

    def find_class(self, module: str, name: str) -> Any:
        module = {"__builtin__": "builtins", "copy_reg": "copyreg"}.get(module, module)
        if module.split(".")[0] == "pandas":
            return type(name, (_Record,), {"origin": f"{module}.{name}"})
        if re.fullmatch(r"numpy(\._?core\.(multiarray|numeric))?", module):
            module = "numpy"
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _KNOWN[module, name]

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to objects outside the file")

    # The hash of a tuple of tuples of tuples takes as long as its author wishes, and cannot be interrupted.
    def _refuse(self, *others: Any) -> None:
        raise pickle.UnpicklingError("it holds a set")

    def _put(self: Any) -> None:
        self._check_keys(self.stack[-2:-1])
        self.load_setitem()

    def _put_all(self: Any) -> None:
        self._check_keys(self.stack[::2])
        self.load_setitems()

    def _make(self: Any) -> None:
        self._check_keys(self.stack[::2])
        self.load_dict()

    def _check_keys(self, keys: list[Any]) -> None:
        if not all(isinstance(key, str | bytes | int) for key in keys):
            raise pickle.UnpicklingError("a key is neither a word nor a number")

    dispatch: ClassVar[dict[int, Any]] = {
        **pickle._Unpickler.dispatch,
        **dict.fromkeys((pickle.EMPTY_SET[0], pickle.FROZENSET[0]), _refuse),
        **{pickle.SETITEM[0]: _put, pickle.SETITEMS[0]: _put_all, pickle.DICT[0]: _make},
    }


# A class, because a pickle can put attributes on a function.
class _Reconstructor(_Record):
    """What Python 2 made plain objects by; only records are."""

    def __new__(cls, made: Any, base: Any, state: Any) -> Any:
        if not (isinstance(made, type) and issubclass(made, _Record)):
            raise pickle.UnpicklingError(f"it makes an object of a {type(made).__name__}")
        return made()


_KNOWN: dict[tuple[str, str], Any] = {
    **{
        (module, name): type(name, (_Record,), {"origin": f"{module}.{name}"})
        for module, name in [
            *(("numpy", name) for name in ("ndarray", "dtype", "_reconstruct", "_frombuffer", "scalar")),
            ("builtins", "slice"),
            ("builtins", "object"),
            ("_codecs", "encode"),  # how protocol 2 writes bytes
        ]
    },
    ("copyreg", "_reconstructor"): _Reconstructor,
}


def _array(record: Any) -> _Array | list[Any]:
    """Make the array that a record of NumPy's describes: of numbers, or a list where it holds objects."""
    origin = getattr(record, "origin", type(record).__name__)
    if origin == "numpy._reconstruct":
        _, shape, dtype, is_fortran, content = record.state
    elif origin == "numpy._frombuffer":
        content, dtype, shape, order = record.args
        is_fortran = order == "F"
    else:
        raise ValueError(f"it holds {origin} where an array should be")
    code = dtype.args[0]
    if re.fullmatch(r"O\d?", code):
        if not isinstance(content, list):
            raise ValueError("an array of objects is no list")
        return content
    if not re.fullmatch(r"f[248]|[iu][1248]", code):
        raise ValueError(f"a block of columns is not numbers but {code}")
    order = "" if dtype.state is None else dtype.state[1]
    if getattr(content, "origin", "") == "_codecs.encode":
        content = content.args[0]
    data = content.encode("latin1") if isinstance(content, str) else bytes(memoryview(content))
    numbers: _Array = np.frombuffer(data, np.dtype(f"{order if order in ('<', '>') else ''}{code}"))
    if not (isinstance(shape, tuple) and all(isinstance(n, int) and 0 <= n <= numbers.size for n in shape)):
        raise ValueError(f"the shape of an array of {numbers.size} numbers is none")
    if math.prod(shape) != numbers.size:
        raise ValueError(f"an array of shape {shape} has {numbers.size} numbers")
    return numbers.reshape(shape, order="F" if is_fortran else "C")


def _frame(record: Any, size: int) -> pd.DataFrame:
    """Put a frame together from the record of its block manager; its arrays have ``size`` bytes at most."""
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
    for record, places in blocks:
        values = _array(record)
        if not isinstance(values, np.ndarray) or values.ndim != 2:
            raise ValueError("a block of columns is not numbers but object")
        size -= values.nbytes
        if size < 0:
            raise ValueError("its columns are larger than the file")
        is_slice = getattr(places, "origin", "") == "builtins.slice"
        positions = np.arange(len(names))[slice(*places.args) if is_slice else _array(places)]
        if len(positions) != len(values):
            raise ValueError(f"a block of {len(values)} columns belongs to {len(positions)} places")
        for position, column in zip(positions, values, strict=True):
            columns[position] = column.astype(np.float64)
    if missing := [name for name, column in zip(names, columns, strict=True) if column is None]:
        raise ValueError(f"the columns {missing[:40]} have no values")
    return pd.DataFrame(dict(zip(names, columns, strict=True)))


def _labels(index: Any) -> list[str]:
    data = index.args[1]["data"]
    if not data.origin.startswith("numpy.") and data.state is not None:  # an extension array around one of objects
        parts = data.state if isinstance(data.state, tuple) else tuple(data.state.values())
        data = next(part for part in parts if getattr(part, "origin", "").startswith("numpy."))
    labels = _array(data)
    if not all(isinstance(label, str | int | np.number) for label in labels):
        raise ValueError("its column names are neither words nor numbers")
    names = [str(label) for label in labels]
    if len(set(names)) < len(names):
        raise ValueError(f"column names occur more than once: {names[:40]}")
    return names
