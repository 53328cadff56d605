"""One batch for prompts that come from several threads.

Covers: the thread that steps the batch, who enters and leaves between two steps, and bringing the steps
to those who wait for them. Does not cover: the batch (`giaann_dask.inference.v1.pull_batch`) and who is let in
(`line`).
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import suppress
from queue import Empty, SimpleQueue

from giaann_dask.errors import ClusterError
from giaann_dask.inference.batch import Advance, Batch, Prompt
from giaann_dask.inference.state.sequence import StepTrace

# Whoever waits for a step looks after so many seconds whether it is still wanted.
_LOOK_S = 0.25
_CLOSE_S = 5.0


class _Place:
    """A prompt in the batch, or waiting for the next step."""

    def __init__(self, prompt: Prompt) -> None:
        self.prompt = prompt
        self.steps: SimpleQueue[Advance | Exception] = SimpleQueue()
        self.gone = threading.Event()


class SharedBatch:
    """Advances sequences of several threads together, in a thread of its own.

    The steps of a sequence do not depend on what else is in the batch. When a step fails, as when rows
    cannot be had any more, all that are under way are told so, and the next ones begin anew.

    Parameters
    ----------
    batch : Batch
        Used by nobody else.
    """

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._arriving: SimpleQueue[_Place | None] = SimpleQueue()
        self._waiting: list[_Place] = []
        self._under: dict[int, _Place] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="batch", daemon=True)
        self._thread.start()

    def run(self, prompt: Prompt) -> Generator[StepTrace | None, None, None]:
        """Advance a sequence; closing the generator lets it leave.

        Parameters
        ----------
        prompt : Prompt
            The sequence, and how many tokens are generated after it.

        Yields
        ------
        StepTrace or None
            Its steps in order; None whenever there is none for a while.

        Raises
        ------
        ClusterError
            If the batch is closed meanwhile, or its rows cannot be had any more.
        """
        place = _Place(prompt)
        self._arriving.put(place)
        try:
            while True:
                try:
                    found = place.steps.get(timeout=_LOOK_S)
                except Empty:
                    if self._closed:
                        raise ClusterError("the batch is closed", "an open one", "open the network again") from None
                    yield None
                    continue
                if isinstance(found, Exception):
                    raise found
                yield from found.traces
                if found.finished:
                    return
        finally:
            place.gone.set()

    def close(self) -> None:
        """End the thread after the step under way, waiting for a bounded time."""
        self._closed = True
        self._arriving.put(None)
        self._thread.join(_CLOSE_S)

    def _work(self) -> None:
        while not self._closed:
            if not self._under and not self._waiting:
                self._take(self._arriving.get())
            with suppress(Empty):
                while True:
                    self._take(self._arriving.get_nowait())
            self._let_leave()
            while self._waiting and self._batch.room:
                place = self._waiting.pop(0)
                self._under[self._batch.enter(place.prompt)] = place
            self._step()

    def _take(self, place: _Place | None) -> None:
        if place is not None:
            self._waiting.append(place)

    def _let_leave(self) -> None:
        """Give up what nobody waits for any more."""
        self._waiting = [place for place in self._waiting if not place.gone.is_set()]
        for number in [number for number, place in self._under.items() if place.gone.is_set()]:
            self._batch.leave(number)
            del self._under[number]

    def _step(self) -> None:
        try:
            found = self._batch.step()
        except Exception as error:
            for number, place in self._under.items():
                self._batch.leave(number)
                place.steps.put(error)
            self._under.clear()
            return
        for advance in found:
            self._under[advance.number].steps.put(advance)
            if advance.finished:
                del self._under[advance.number]
