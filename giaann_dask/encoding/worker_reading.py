"""Let workers read the text that they can see, so that the driver sends them names and byte ranges.

The driver still reads all text once, to divide it into parts and to identify these, so both are the same with any
cluster. A worker compares what it reads with the identity of the part.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from giaann_dask.cluster.sharing import naming_worker
from giaann_dask.cluster.waiting import ask_workers, query_scheduler
from giaann_dask.errors import InputMissingError
from giaann_dask.text.block_tagging import tag_block
from giaann_dask.text.blocks import FilterOptions, TaggedBlock
from giaann_dask.text.ever_pos import EverPos
from giaann_dask.text.read_options import ReadOptions
from giaann_dask.text.reading import PartRange, locate_part, read_range
from giaann_dask.text.tokenizer import SubwordTokenizer
from giaann_dask.text.tokens import Part

if TYPE_CHECKING:
    from distributed import Client

_LOG = logging.getLogger(__name__)
# A range takes some hundred bytes itself.
_LEAST_CHARACTERS = 2048


class WorkerReading:
    """Decide for each folder of input files whether the workers read them.

    Parameters
    ----------
    client : Client
        Client of the cluster.
    options : ReadOptions
        How files are read.
    """

    def __init__(self, client: Client, options: ReadOptions) -> None:
        self._client = client
        self._options = options
        self._seen: dict[str, bool] = {}

    def contents(self, parts: Sequence[Part]) -> tuple[Part | PartRange, ...]:
        """Return the parts as tasks get them: where they are, or their text where not all workers can read it."""
        return tuple(self._content(part) for part in parts)

    def _content(self, part: Part) -> Part | PartRange:
        if part.characters < _LEAST_CHARACTERS:
            return part
        located = locate_part(part, self._options)
        if located is None:
            return part
        folder = os.path.dirname(located.name)
        if folder not in self._seen:
            self._seen[folder] = self._is_seen(located)
        return located if self._seen[folder] else part

    def _is_seen(self, located: PartRange) -> bool:
        """Return whether all workers read the same text; log a notice if not."""
        # Threads of this process get the text itself without copying it.
        if all(worker.startswith("inproc://") for worker in query_scheduler(self._client, "ncores")):
            return False
        for worker, problem in ask_workers(self._client, find_problem, located).items():
            if problem:
                _LOG.warning("the text is sent to the workers, as worker %s does not see it: %s", worker, problem)
                return False
        return True


def find_problem(located: PartRange) -> str:
    """Return why this process does not read the same text of a part; empty if it does."""
    try:
        read_range(located)
    except InputMissingError as error:
        return error.received
    return ""


def tag_contents(
    contents: Sequence[Part | PartRange],
    skips: Sequence[int],
    tagger: str,
    lexicon: EverPos | SubwordTokenizer,
    options: FilterOptions,
) -> TaggedBlock:
    """Tag consecutive parts into one block, after reading those that are ranges (a task); see `tag_block`.

    Raises
    ------
    InputMissingError
        If this worker does not see the text of a range.
    """
    with naming_worker():
        parts = [each if isinstance(each, Part) else read_range(each) for each in contents]
    return tag_block(parts, skips, tagger, lexicon, options)
