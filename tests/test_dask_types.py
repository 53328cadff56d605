"""What Dask sees of our values: their size, their token, and how they travel."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from dask.base import tokenize
from dask.sizeof import sizeof
from distributed.protocol import deserialize, dumps, loads, serialize, to_serialize

from giaann_dask.dask_types import measure, register, register_arrays
from giaann_dask.models.words.scores import TextScores
from giaann_dask.runs.packing import PackedRun, pack
from giaann_dask.runs.run import Run

ARRAYS = ("source", "pointer", "target", "strength")


@register_arrays
@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """As blocks of text are."""

    tokens: npt.NDArray[np.int32]
    words: tuple[str, ...]
    number: int


@register_arrays
@dataclass(frozen=True)
class Spread:
    """Without slots, and nested."""

    block: Block
    lengths: dict[str, npt.NDArray[np.int64]]


@pytest.fixture(autouse=True, scope="module")
def _registered() -> None:
    register()
    register()


def make_run(connections: int = 50_000, rows: int = 500) -> Run:
    pointer = np.linspace(0, connections, rows + 1).astype(np.int64)
    rng = np.random.default_rng(connections)
    return Run(
        np.arange(rows) * 7,
        pointer,
        np.sort(rng.integers(0, 1 << 60, connections)),
        rng.integers(1, 1 << 20, connections).astype(np.int32),
    )


def make_block(word: str = "über", number: int = 4) -> Block:
    words = tuple(f"{word}{n}" for n in range(3000))
    return Block(np.arange(40_000, dtype=np.int32), words, number)


def copied(run: Run) -> Run:
    return Run(*(getattr(run, name).copy() for name in ARRAYS))


def assert_same(left: Run, right: Run) -> None:
    for name in ARRAYS:
        one, other = getattr(left, name), getattr(right, name)
        assert one.dtype == other.dtype
        assert one.tobytes() == other.tobytes()
        assert one.flags.writeable == other.flags.writeable


def test_size_is_that_of_the_buffers() -> None:
    run, packed = make_run(), pack(make_run())
    assert run.nbytes <= sizeof(run) <= 1.05 * run.nbytes
    assert packed.nbytes <= sizeof(packed) <= 1.05 * packed.nbytes


def test_scores_and_summaries_that_tasks_return_are_measured() -> None:
    values = np.zeros(10_000)
    scores = TextScores(values, values > 0, *[values.astype(int)] * 3, values > 0, values.astype(int))
    assert 420_000 <= sizeof(scores) <= 430_000
    assert tokenize(scores) == tokenize(replace(scores, log_probability=values.copy()))
    assert tokenize(scores) != tokenize(replace(scores, log_probability=values + 1))


def test_size_counts_views_and_every_string() -> None:
    run = make_run()
    half = Run(run.source[:250], run.pointer[:251], run.target[:25_000], run.strength[:25_000])
    assert half.nbytes <= sizeof(half) <= 1.05 * half.nbytes
    block = make_block()
    buffers = block.tokens.nbytes + sum(map(sys.getsizeof, block.words)) + sys.getsizeof(block.words)
    assert buffers <= sizeof(block) <= 1.05 * buffers
    spread = Spread(block, {"long": np.zeros(10_000, np.int64)})
    assert buffers + 80_000 <= sizeof(spread) <= 1.05 * (buffers + 80_000)


def test_size_of_values_without_arrays() -> None:
    assert measure(5) == sys.getsizeof(5)
    assert measure(b"x" * 1000) == sys.getsizeof(b"x" * 1000)


def test_equal_content_has_an_equal_token() -> None:
    run = make_run()
    read_only = copied(run)
    for name in ARRAYS:
        getattr(read_only, name).flags.writeable = False
    assert tokenize(run) == tokenize(copied(run)) == tokenize(read_only)
    assert tokenize(pack(run)) == tokenize(pack(copied(run)))
    assert tokenize(make_block()) == tokenize(make_block())
    assert tokenize(Spread(make_block(), {"a": np.arange(3)})) == tokenize(Spread(make_block(), {"a": np.arange(3)}))


@pytest.mark.parametrize("name", ARRAYS)
def test_different_content_has_another_token(name: str) -> None:
    run, other = make_run(), copied(make_run())
    getattr(other, name)[3] += 1
    assert tokenize(run) != tokenize(other)
    wide = Run(run.source, run.pointer, run.target, run.strength.astype(np.int64))
    assert tokenize(run) != tokenize(wide)
    if name in ("target", "strength"):
        assert tokenize(pack(run)) != tokenize(pack(other))


def test_tokens_of_blocks_depend_on_all_fields() -> None:
    blocks = [make_block(), make_block(word="unter"), make_block(number=5)]
    arrays = [{"a": np.arange(3)}, {"b": np.arange(3)}, {"a": np.arange(4)}]
    values: list[Any] = [*blocks, *(Spread(blocks[0], array) for array in arrays)]
    values.append(Spread(blocks[1], arrays[0]))
    values.append(Block(blocks[0].tokens, ("a", "bc"), 4))
    values.append(Block(blocks[0].tokens, ("ab", "c"), 4))
    assert len({tokenize(value) for value in values}) == len(values)


def test_tokens_are_equal_in_another_process() -> None:
    code = (
        "import numpy as np; from dask.base import tokenize\n"
        "from giaann_dask.dask_types import register; register()\n"
        "from giaann_dask.runs.run import Run; from giaann_dask.runs.packing import pack\n"
        "run = Run(np.array([5]), np.array([0, 1]), np.array([9]), np.array([4], np.int32))\n"
        "print(tokenize(run), tokenize(pack(run)))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    run = Run(np.array([5]), np.array([0, 1]), np.array([9]), np.array([4], np.int32))
    assert printed.split() == [tokenize(run), tokenize(pack(run))]


def test_a_run_travels_in_buffers_of_its_own() -> None:
    run = make_run()
    header, frames = serialize(run)
    sizes = [memoryview(frame).nbytes for frame in frames]
    assert sizes[1:] == [getattr(run, name).nbytes for name in ARRAYS]
    assert sizes[0] < 1000
    # The buffers are the arrays themselves, not copies.
    for frame, name in zip(frames[1:], ARRAYS, strict=True):
        assert np.shares_memory(np.frombuffer(frame, np.uint8), getattr(run, name))
    assert_same(deserialize(header, frames), run)


@pytest.mark.parametrize("writeable", [True, False])
def test_a_run_arrives_as_it_was_sent(writeable: bool) -> None:
    run = make_run()
    for name in ARRAYS:
        getattr(run, name).flags.writeable = writeable
    frames = [bytearray(frame) for frame in dumps({"value": to_serialize(run)})]
    assert sum(len(frame) < 1000 for frame in frames) == len(frames) - len(ARRAYS)
    assert_same(loads(frames, deserialize=True)["value"], run)


def test_a_part_of_a_run_does_not_take_the_rest_along() -> None:
    run = make_run()
    half = Run(run.source[:250], run.pointer[:251], run.target[:25_000], run.strength[:25_000])
    _, frames = serialize(half)
    assert sum(memoryview(frame).nbytes for frame in frames) < half.nbytes + 1000


def test_packed_runs_and_blocks_travel() -> None:
    packed, block = pack(make_run()), make_block()
    received = loads([bytearray(frame) for frame in dumps([to_serialize(packed), to_serialize(block)])])
    assert isinstance(received[0], PackedRun)
    assert received[0].entries == packed.entries
    assert np.array_equal(received[1].tokens, block.tokens)
    assert (received[1].words, received[1].number) == (block.words, block.number)


def test_only_frozen_dataclasses_are_taken() -> None:
    @dataclass
    class Open:
        value: int

    for cls in (Open, int):
        with pytest.raises(TypeError, match="frozen"):
            register_arrays(cls)


def test_registering_is_cheap() -> None:
    """A process that only registers loads neither Dask's collections nor compiled code."""
    code = (
        "import sys, giaann_dask.dask_types as types\n"
        "assert 'dask' not in sys.modules\n"
        "types.register(); types.register()\n"
        "heavy = {'numba', 'zarr', 'distributed', 'dask.array', 'torch'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_classes_registered_before_and_after_register() -> None:
    @register_arrays
    @dataclass(frozen=True)
    class Late:
        values: npt.NDArray[np.int64]

    assert sizeof(Late(np.zeros(1000, np.int64))) >= 8000
    assert register_arrays(Late) is Late
