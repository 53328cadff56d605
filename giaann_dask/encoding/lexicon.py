"""Choose the lexicon of words or the tokenizer of subwords by the value of an option.

An ever-POS lexicon is LemmInflect's dictionary, a file, or collected from the inputs on the cluster. A tokenizer is
none, a file, an encoding of ``tiktoken``, or learnt from the inputs.

Does not cover: the rules that use a lexicon (`giaann_dask.text.ever_pos`), and learning and using a tokenizer
(`giaann_dask.text.tokenizer`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from giaann_dask.cluster import result, task_key
from giaann_dask.errors import OptionError
from giaann_dask.local_files import local_path
from giaann_dask.storage import write_file
from giaann_dask.store.corpus import is_corpus
from giaann_dask.text.ever_pos import EverPos
from giaann_dask.text.inputs import require_rereadable
from giaann_dask.text.memory_inputs import Source
from giaann_dask.text.read_options import ReadOptions
from giaann_dask.text.reading import parse_conllu, read_parts
from giaann_dask.text.subword_blocks import join_words
from giaann_dask.text.tagging import tag_part
from giaann_dask.text.tokenizer import SubwordTokenizer, check_size
from giaann_dask.text.tokens import Part

if TYPE_CHECKING:
    from distributed import Client, Future

DEFAULT, CORPUS = "lemminflect", "corpus"
NONE, LEARN, _TIKTOKEN = "none", "learn:", "tiktoken:"
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
    own = "leave ever_pos out to use the corpus's own lexicon"
    _require_text(inputs, "the lexicon is to be collected", own)
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
    return EverPos.from_words(tag_part(part, tagger).distinct())


def _require_text(inputs: Sequence[Source], purpose: str, remedy: str) -> None:
    """Raise an `OptionError` if one of the inputs is an encoded corpus."""
    for name in inputs:
        if is_corpus(name):
            raise OptionError(f"{purpose} from {name}, which is encoded already", "text", remedy)


def choose_tokenizer(choice: str, inputs: Sequence[Source], reading: ReadOptions) -> SubwordTokenizer | None:
    """Return the tokenizer for the value of an option, None for words.

    Parameters
    ----------
    choice : str
        ``"none"``, ``"learn:SIZE"``, ``"tiktoken:NAME"`` or the path of a tokenizer's JSON file.
    inputs : sequence of str or MemoryInput
        Inputs of the command.
    reading : ReadOptions
        Options of reading them.

    Raises
    ------
    OptionError
        If the size is not a number, or an input to learn from is an encoded corpus or can be read only
        once.
    InputMissingError, InputFormatError, MissingDependencyError
        If the tokenizer cannot be used.
    """
    if choice == NONE:
        return None
    if choice.startswith(_TIKTOKEN):
        return SubwordTokenizer.from_tiktoken(choice.removeprefix(_TIKTOKEN))
    if not choice.startswith(LEARN):
        return SubwordTokenizer.from_file(choice)
    size = _size(choice)
    require_rereadable(inputs, "a tokenizer that is learnt from the text itself")
    return learn_tokenizer(inputs, size, reading)


def check_tokenizer(choice: str) -> None:
    """Check the value of an option as `choose_tokenizer` does, without learning."""
    if choice.startswith(LEARN):
        check_size(_size(choice))
    else:
        choose_tokenizer(choice, (), ReadOptions())


def _size(choice: str) -> int:
    """Return the size in ``learn:SIZE``."""
    size = choice.removeprefix(LEARN)
    if not size.isdecimal():
        raise OptionError(
            f"tokenizer is {choice!r}",
            "learn:SIZE with a number",
            "choose one, such as learn:16384",
            names=("tokenizer",),
        )
    return int(size)


def learn_tokenizer(inputs: Sequence[Source], size: int, reading: ReadOptions) -> SubwordTokenizer:
    """Learn a tokenizer from inputs, in this process.

    Parameters
    ----------
    inputs : sequence of str or MemoryInput
        Files, folders, patterns or datasets.
    size : int
        Maximum number of subwords.
    reading : ReadOptions
        Options of reading the inputs.

    Raises
    ------
    OptionError
        If the size is out of range, or an input is an encoded corpus.
    """
    remedy = "learn it from the text, with giaann-dask tokenizer train, or leave the option out"
    _require_text(inputs, "the tokenizer is to be learnt", remedy)
    return SubwordTokenizer.learn(_texts(inputs, reading), size)


def save_tokenizer(tokenizer: SubwordTokenizer, path: Path) -> None:
    """Write a tokenizer to a file in the format of the package ``tokenizers``."""
    write_file(local_path(path), tokenizer.content, "the tokenizer")


def _texts(inputs: Sequence[Source], reading: ReadOptions) -> Iterator[str]:
    """Yield the passages of inputs as text; for CoNLL-U, its sentences."""
    for part in read_parts(inputs, reading):
        if part.kind == "text":
            yield from part.passages
            continue
        for passage in part.passages:
            for sentence in parse_conllu(passage):
                yield join_words(sentence)
