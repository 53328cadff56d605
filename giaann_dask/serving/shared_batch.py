"""Share one batch between the threads of a server: a thread of its own steps it and delivers the results.

Does not cover: the batch (`giaann_dask.inference.batch`) and admission control (`giaann_dask.serving.request_queue`).
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import suppress
from queue import Empty, SimpleQueue

from giaann_dask.errors import ClusterError
from giaann_dask.inference.batch import Advance, Batch, Prompt
from giaann_dask.inference.state.sequence import StepTrace

# A thread that waits for a step yields control after so many seconds, so that its prompt can be abandoned.
_POLL_S = 0.25
_CLOSE_S = 5.0


class _Slot:
    """A prompt in the batch, or waiting for the next step."""

    def __init__(self, prompt: Prompt) -> None:
        self.prompt = prompt
        self.steps: SimpleQueue[Advance | Exception] = SimpleQueue()
        self.gone = threading.Event()


class SharedBatch:
    """Advances sequences of several threads together, in a thread of its own.

    The steps of a sequence do not depend on what else is in the batch. When a step fails, as when rows cannot be
    fetched any more, all sequences in the batch fail with its error; later ones start normally.

    Parameters
    ----------
    batch : Batch
        Used by this object only.
    """

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._arriving: SimpleQueue[_Slot | None] = SimpleQueue()
        self._waiting: list[_Slot] = []
        self._under: dict[int, _Slot] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="batch", daemon=True)
        self._thread.start()

    def run(self, prompt: Prompt) -> Generator[StepTrace | None, None, None]:
        """Advance a sequence; closing the generator removes it.

        Parameters
        ----------
        prompt : Prompt
            The sequence, and how many tokens are generated after it.

        Yields
        ------
        StepTrace or None
            Its steps in order; None if there is none for a while.

        Raises
        ------
        ClusterError
            If the batch is closed meanwhile, or its rows cannot be fetched any more.
        """
        slot = _Slot(prompt)
        self._arriving.put(slot)
        try:
            while True:
                try:
                    found = slot.steps.get(timeout=_POLL_S)
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
            slot.gone.set()

    def close(self) -> None:
        """End the thread after the current step, waiting for a bounded time."""
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
            self._remove_abandoned()
            while self._waiting and self._batch.free_slots:
                slot = self._waiting.pop(0)
                self._under[self._batch.enter(slot.prompt)] = slot
            self._step()

    def _take(self, slot: _Slot | None) -> None:
        if slot is not None:
            self._waiting.append(slot)

    def _remove_abandoned(self) -> None:
        """Remove the prompts that were abandoned."""
        self._waiting = [slot for slot in self._waiting if not slot.gone.is_set()]
        for number in [number for number, slot in self._under.items() if slot.gone.is_set()]:
            self._batch.leave(number)
            del self._under[number]

    def _step(self) -> None:
        try:
            found = self._batch.step()
        except Exception as error:
            for number, slot in self._under.items():
                self._batch.leave(number)
                slot.steps.put(error)
            self._under.clear()
            return
        for advance in found:
            self._under[advance.number].steps.put(advance)
            if advance.finished:
                del self._under[advance.number]
