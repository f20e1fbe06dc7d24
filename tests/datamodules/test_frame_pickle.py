"""Reading pickled frames: their numbers, and nothing else that a pickle can do."""

import io
import pickle
import sys
import types
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lightning_lift.datamodules.frame_pickle import read_frame

NAMES = pd.Index(["Time", "CO", "x", "count"], dtype=object)


def frame() -> pd.DataFrame:
    values = np.random.default_rng(0).normal(size=(7, 4))
    result = pd.DataFrame(values, columns=NAMES)
    result["count"] = np.arange(7)  # a block of integers beside that of floats
    result["x"] = result["x"].astype(np.float32)
    return result


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_frame_of_numbers(protocol: int) -> None:
    wanted = frame()
    found = read_frame(io.BytesIO(pickle.dumps(wanted, protocol=protocol)), "x.pickle")
    assert list(found.columns) == list(NAMES)
    np.testing.assert_array_equal(found.to_numpy(), wanted.to_numpy(dtype=np.float64))


def old_pandas(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module that pickles frames the way pandas 0.14 to 1.2 did: a manager with a state of four parts."""
    module = types.ModuleType("pandas.old")
    source = """
class BlockManager:
    def __getstate__(self): return self.saved
    def __setstate__(self, state): raise RuntimeError("executed")
class DataFrame(BlockManager): pass
class Index: pass
def _new_Index(cls, d): raise RuntimeError("executed")
"""
    exec(source, module.__dict__)
    monkeypatch.setitem(sys.modules, "pandas.old", module)
    return module


@pytest.mark.parametrize("protocol", [0, 2])
@pytest.mark.parametrize("direct", [False, True])
def test_a_frame_of_an_old_pandas(monkeypatch: pytest.MonkeyPatch, protocol: int, direct: bool) -> None:
    old = old_pandas(monkeypatch)

    class LabelIndex:
        def __init__(self, names) -> None:
            self.names = names

        def __reduce__(self):
            return old._new_Index, (old.Index, {"data": np.array(self.names, dtype=object), "name": None})

    a, b = np.arange(6.0).reshape(2, 3), np.arange(3)[None]
    axes = [LabelIndex(["p", "q", "r"]), LabelIndex([0, 1, 2])]
    blocks = [{"values": a, "mgr_locs": slice(0, 3, 2)}, {"values": b, "mgr_locs": np.array([1])}]
    manager = old.BlockManager()
    manager.saved = (axes, [], [], {"0.14.1": {"axes": axes, "blocks": blocks}})

    whole = old.DataFrame()
    whole.saved = manager if direct else {"_data": manager, "_typ": "dataframe", "_metadata": []}
    found = read_frame(io.BytesIO(pickle.dumps(whole, protocol=protocol)), "x.pickle")
    assert list(found.columns) == ["p", "q", "r"]
    np.testing.assert_array_equal(found.to_numpy(), np.stack([a[0], b[0], a[1]], axis=1))


def test_nothing_is_executed(tmp_path: Path) -> None:
    target = tmp_path / "written"

    class Evil:
        def __reduce__(self):
            return open, (str(target), "w")

    content = pickle.dumps({"frame": frame(), "more": Evil()})
    with pytest.raises(
        ValueError, match=r"(?s)asks for (_io|io|builtins).open.*nothing is executed.*to_parquet\('x\.parquet"
    ):
        read_frame(io.BytesIO(content), "x.pickle")
    assert not target.exists()


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"cos\nsystem\n(S'true'\ntR.", "asks for os.system"),
        (b"cbuiltins\neval\n(S'1'\ntR.", "asks for builtins.eval"),
        (b"cnumpy\nload\n(S'x'\ntR.", "asks for numpy.load"),
        (b"ccopy_reg\n_reconstructor\n(c__builtin__\nobject\nc__builtin__\nobject\nNtR.", "makes an object of"),
        (b"Pelsewhere\n.", "outside the file"),
        (pickle.dumps([1, 2]), "holds list, no DataFrame"),
        (pickle.dumps(np.zeros(3)), "holds ndarray, no DataFrame"),
        (b"", "cannot be read as a frame"),
        (b"not a pickle", "cannot be read as a frame"),
    ],
)
def test_what_is_refused(payload: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_frame(io.BytesIO(payload), "x.pickle")


def test_cut_off_and_columns_that_are_no_numbers() -> None:
    content = pickle.dumps(frame())
    with pytest.raises(ValueError, match="cannot be read as a frame"):
        read_frame(io.BytesIO(content[: len(content) // 2]), "x.pickle")
    words = frame().assign(word=pd.Series(["a"] * 7, dtype=object))
    words.columns = pd.Index([*NAMES, "word"], dtype=object)
    with pytest.raises(ValueError, match="not numbers but object"):
        read_frame(io.BytesIO(pickle.dumps(words)), "x.pickle")
