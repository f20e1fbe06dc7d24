"""Reading pickled frames: their numbers, and nothing else that a pickle can do."""

import io
import pickle
import sys
import tracemalloc
import types
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lightning_lift.datamodules import frame_pickle
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
        (b"ccopy_reg\n_reconstructor\n(c__builtin__\nobject\nc__builtin__\nobject\nNtR.", "holds object, no DataFrame"),
        (b"ccopy_reg\n_reconstructor\n(N(Nt.", "cannot be read as a frame"),
        (b"ccopy_reg\n_reconstructor\n(NNNtR.", "makes an object of"),
        (b"c_codecs\nencode\n(N}S'__defaults__'\nN(Nts\x86b.", "cannot be read as a frame"),
        (b"Pelsewhere\n.", "outside the file"),
        (pickle.dumps([1, 2]), "holds list, no DataFrame"),
        (pickle.dumps(np.zeros(3)), "holds _reconstruct, no DataFrame"),
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


def spoilt(find: bytes, put: bytes, protocol: int = 4) -> bytes:
    content = pickle.dumps(frame(), protocol=protocol)
    assert find in content
    return content.replace(find, put)


DEAD_POINTERS = pickle.dumps(np.full(4, 0xDEAD, dtype=np.int64).tobytes())[2:-1]


@pytest.mark.parametrize(
    "payload",
    [
        # ndarray(shape, object, buffer): reading an element would follow an address of the author's choice
        b"cnumpy\nndarray\n((K\x04tcnumpy\ndtype\n(S'O'\ntR" + DEAD_POINTERS + b"tR.",
        b"cnumpy.core.numeric\n_frombuffer\n(" + DEAD_POINTERS + b"cnumpy\ndtype\n(S'O'\ntR(K\x04tS'C'\ntR.",
        b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(S'O'\ntR" + DEAD_POINTERS + b"tR.",
        # the same in the place of a frame's block
        spoilt(b"f8", b"O8"),
        spoilt(b"f8", b"V8"),
        spoilt(b"f8", b"f9"),
        # counts far above the size of the file
        b"B\xff\xff\xff\x7f.",
        b"\x80\x05\x8e" + b"\xff" * 7 + b"\x00.",
        b"\x80\x05\x96" + b"\xff" * 5 + b"\x00\x00\x00.",
        b"\x80\x05\x95" + b"\xff" * 7 + b"\x00N.",
        b"Nr\xff\xff\xff\xff.",
        spoilt(b"K\x07", b"M\xff\xff"),
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I1000000000000\ntS'b'\ntR.",
        b"(" * 100_000 + b"l" * 100_000 + b".",
    ],
)
def test_a_hostile_pickle_is_one_error(payload: bytes) -> None:
    with pytest.raises(ValueError, match="cannot be read as a frame of numbers"):
        read_frame(io.BytesIO(payload), "x.pickle")


def test_columns_that_share_their_numbers_are_not_larger_than_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few bytes a column would otherwise ask for the whole array again."""
    old = old_pandas(monkeypatch)
    names = [str(i) for i in range(200)]

    class LabelIndex:
        def __reduce__(self):
            return old._new_Index, (old.Index, {"data": np.array(names, dtype=object), "name": None})

    values = np.zeros((1, 10_000))
    blocks = [{"values": values, "mgr_locs": slice(i, i + 1)} for i in range(200)]
    manager = old.BlockManager()
    manager.saved = ([LabelIndex()], [], [], {"0.14.1": {"axes": [LabelIndex()], "blocks": blocks}})
    whole = old.DataFrame()
    whole.saved = manager
    with pytest.raises(ValueError, match="columns are larger than the file"):
        read_frame(io.BytesIO(pickle.dumps(whole)), "x.pickle")


class Pointers:
    """An array of objects over a buffer of the author's choice: whoever looks at it follows the addresses in it."""

    def __reduce__(self):
        return np.ndarray, ((3,), np.dtype("O"), np.full(3, 0xDEAD, dtype=np.int64).tobytes())


@pytest.mark.parametrize("place", ["labels", "places", "values"])
def test_no_array_is_made_over_a_buffer_of_addresses(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    old = old_pandas(monkeypatch)
    evil = Pointers()

    class LabelIndex:
        def __reduce__(self):
            names = np.array(["p", "q", "r"], dtype=object)
            return old._new_Index, (old.Index, {"data": evil if place == "labels" else names, "name": None})

    block = {"values": np.zeros((3, 2)), "mgr_locs": slice(0, 3)}
    block |= {"places": {"mgr_locs": evil}, "values": {"values": evil}}.get(place, {})
    manager, whole = old.BlockManager(), old.DataFrame()
    manager.saved = ([LabelIndex()], [], [], {"0.14.1": {"axes": [LabelIndex()], "blocks": [block]}})
    whole.saved = manager
    with pytest.raises(ValueError, match=r"holds numpy\.ndarray where an array should be"):
        read_frame(io.BytesIO(pickle.dumps(whole)), "x.pickle")


def test_a_file_beyond_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_pickle, "LARGEST", 100)
    with pytest.raises(ValueError, match="more than 100 bytes"):
        read_frame(io.BytesIO(pickle.dumps(frame())), "x.pickle")


NESTED = b"(tq\0" + b"".join(b"h" + bytes([i]) + b"h" + bytes([i]) + b"\x86q" + bytes([i + 1]) for i in range(60))


@pytest.mark.parametrize(
    "use",
    [
        b"}h\x3cK\1s.",
        b"}(h\x3cK\1u.",
        b"(h\x3cK\1d.",
        b"\x8f(h\x3c\x90.",
        b"(h\x3c\x91.",
        b"ccopy_reg\n_reconstructor\n(h\x3cc__builtin__\nobject\nNtR.",
    ],
)
def test_nested_tuples_are_neither_hashed_nor_written_out(use: bytes) -> None:
    with pytest.raises(ValueError, match="cannot be read as a frame"):
        read_frame(io.BytesIO(NESTED + use), "x.pickle")


@pytest.mark.parametrize(
    "shape", [b"X\1\0\0\0aJ\0\0\0\x70\x86", b"K\2h\x3c\x86", b"J\xfe\xff\xff\xffJ\xff\xff\xff\xff\x86"]
)
def test_shapes_are_counts(shape: bytes) -> None:
    content = pickle.dumps(pd.DataFrame(np.zeros((1, 2)), columns=pd.Index(["p", "q"], dtype=object)), protocol=2)
    assert b"K\x02K\x01\x86" in content
    content = NESTED + content[2:].replace(b"K\x02K\x01\x86", shape, 1)
    with pytest.raises(ValueError, match="the shape of an array of 2 numbers is none"):
        read_frame(io.BytesIO(content), "x.pickle")


def test_text_is_not_encoded_again_and_again() -> None:
    text = b"X" + (1_000_000).to_bytes(4, "little") + b"x" * 1_000_000 + b"q\0"
    content = b"\x80\2(" + text + b"c_codecs\nencode\nq\1" + b"h\1h\0X\6\0\0\0latin1\x86R" * 300 + b"t."
    tracemalloc.start()
    with pytest.raises(ValueError, match="it holds tuple"):
        read_frame(io.BytesIO(content), "x.pickle")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000_000  # 300 copies are 300 MB
