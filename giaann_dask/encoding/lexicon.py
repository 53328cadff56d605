"""Choose the ever-POS lexicon: LemmInflect's dictionary, a file, or a lexicon collected from the inputs on the cluster.

Does not cover: the rules that use it (`giaann_dask.text.ever_pos`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from giaann_dask.cluster import result, task_key
from giaann_dask.errors import OptionError
from giaann_dask.store.corpus import is_corpus
from giaann_dask.text.block_tagging import tag_part
from giaann_dask.text.ever_pos import EverPos
from giaann_dask.text.inputs import require_rereadable
from giaann_dask.text.memory_inputs import Source
from giaann_dask.text.read_options import ReadOptions
from giaann_dask.text.reading import read_parts
from giaann_dask.text.tokens import Part, TaggedSentence

if TYPE_CHECKING:
    from distributed import Client, Future

DEFAULT = "lemminflect"
CORPUS = "corpus"
_IN_FLIGHT = 16


def choose_ever(client: Client, choice: str, inputs: Sequence[Source], tagger: str, reading: ReadOptions) -> EverPos:
    """Return the lexicon for the value of an option.

    Parameters
    ----------
    client : Client
        Client of the cluster that tags the inputs if the lexicon is collected from them.
    choice : str
        ``"lemminflect"``, ``"corpus"`` (every token of the inputs, including sentences of any length),
        or the path of a JSON file.
    inputs : sequence of str or MemoryInput
        Inputs of the command.
    tagger, reading
        Tagger and options of reading the inputs.

    Raises
    ------
    OptionError
        If the lexicon is to be collected from an encoded corpus, which does not contain every token, or from
        an input that can be read only once.
    InputMissingError, InputFormatError
        If the file cannot be used.
    """
    if choice == DEFAULT:
        return EverPos.from_lemminflect()
    if choice != CORPUS:
        return EverPos.from_json(choice)
    encoded = [name for name in inputs if is_corpus(name)]
    if encoded:
        raise OptionError(
            f"the lexicon is to be collected from {encoded[0]}, which is encoded already",
            "text",
            "leave ever_pos out to use the corpus's own lexicon",
        )
    require_rereadable(inputs, "a lexicon of the text itself")
    ever_pos = EverPos()
    pending: deque[Future] = deque()
    for part in read_parts(inputs, reading):
        key = task_key("collect", part.fingerprint(), part.kind, tagger)
        pending.append(client.submit(collect_ever, part, tagger, key=key))
        if len(pending) >= _IN_FLIGHT:
            ever_pos = ever_pos.union(result(pending.popleft()))
    for future in pending:
        ever_pos = ever_pos.union(result(future))
    return ever_pos


def check_ever(choice: str) -> None:
    """Check the value of an option as `choose_ever` does, without reading any text."""
    if choice not in (DEFAULT, CORPUS):
        EverPos.from_json(choice)


def collect_ever(part: Part, tagger: str) -> EverPos:
    """Collect the lexicon of one part (a task)."""
    words = tag_part(part, tagger).distinct()
    return EverPos.from_sentences(TaggedSentence(*([field] for field in word)) for word in words)
