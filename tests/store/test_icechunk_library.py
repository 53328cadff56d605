"""A process that has used Icechunk ends when the threads of Icechunk have left Python."""

from __future__ import annotations

import _thread
import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from giaann_dask.store.icechunk_library import (
    await_icechunk,
    icechunk,
    manifest_sizes,
    prepare_icechunk,
    use_icechunk,
)


class SlowLoop(asyncio.SelectorEventLoop):
    """An event loop that takes what another thread hands over when it is told to."""

    def __init__(self, known: bool) -> None:
        self.known, self.entered, self.stop = known, threading.Event(), threading.Event()
        super().__init__()

    def _write_to_self(self) -> None:
        if self.known:
            # The thread has an entry in `threading` from then on.
            threading.current_thread()
        self.entered.set()
        self.stop.wait(10)


@pytest.fixture
def enter() -> Iterator[Callable[[bool], SlowLoop]]:
    """Return what calls a loop in a thread that Python's `threading` did not start."""
    loops = []

    def entered(known: bool) -> SlowLoop:
        loops.append(SlowLoop(known))
        _thread.start_new_thread(loops[-1].call_soon_threadsafe, (print,))
        assert loops[-1].entered.wait(10)
        return loops[-1]

    yield entered
    for loop in loops:
        loop.stop.set()
        # Its thread would be found by the next test.
        await_icechunk()
        loop.close()


@pytest.mark.parametrize("known", [False, True])
def test_what_is_handed_over_is_awaited(enter: Callable[[bool], SlowLoop], known: bool) -> None:
    loop = enter(known)
    threading.Timer(0.2, loop.stop.set).start()
    assert await_icechunk()
    assert loop.stop.is_set()


def test_the_wait_is_bounded(enter: Callable[[bool], SlowLoop]) -> None:
    loop, began = enter(False), time.monotonic()
    assert not await_icechunk(0.1)
    assert time.monotonic() - began >= 0.1
    assert not loop.stop.is_set()


def test_other_threads_are_not_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("it waits"))
    stop = threading.Event()
    _thread.start_new_thread(stop.wait, (10,))
    threading.Thread(target=stop.wait, args=(10,)).start()
    await_icechunk()
    stop.set()


@pytest.mark.parametrize(("environment", "wanted"), [(None, "off"), ("warn", "warn")])
def test_errors_of_icechunk_are_exceptions_alone(
    environment: str | None, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It also writes them to standard error, with escape sequences, such as those of a wrong clock."""
    filters: list[str] = []
    monkeypatch.setattr(icechunk, "set_logs_filter", filters.append)
    monkeypatch.setattr("atexit.register", filters.count)
    monkeypatch.delenv("ICECHUNK_LOG", raising=False)
    if environment:
        monkeypatch.setenv("ICECHUNK_LOG", environment)
    # As in a process that has not used it.
    monkeypatch.setattr("giaann_dask.store.icechunk_library._user", None)
    use_icechunk()
    assert filters == [wanted]


class LockedStore:
    """A store of Icechunk 2, whose name is found with the interpreter's lock held."""

    def __str__(self) -> str:
        pytest.fail("it waits for a thread that waits for the lock")

    __repr__ = __str__


def test_names_of_stores_ask_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(icechunk, "SpecVersion", None, raising=False)
    monkeypatch.setattr(icechunk, "IcechunkStore", LockedStore)
    prepare_icechunk()
    assert str(LockedStore()).startswith("<icechunk.IcechunkStore at ")
    assert repr(LockedStore()).startswith("<icechunk.IcechunkStore at ")


def test_manifests_of_a_commit_are_listed_without_the_lock() -> None:
    async def listed(commit: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(id=f"of {commit}", size_bytes=3)]

    repository = SimpleNamespace(list_manifest_files_async=listed)
    assert manifest_sizes(repository, SimpleNamespace(id="1")) == {"of 1": 3}
