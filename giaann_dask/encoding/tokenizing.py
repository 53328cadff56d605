"""Choose the tokenizer: none, a file, an encoding of ``tiktoken``, or one learnt from the inputs.

Does not cover: learning and using a tokenizer (`giaann_dask.text.tokenizer`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from giaann_dask.errors import OptionError
from giaann_dask.local_files import local_path
from giaann_dask.storage import write_file
from giaann_dask.store.corpus import is_corpus
from giaann_dask.text.conllu import parse_conllu
from giaann_dask.text.inputs import require_rereadable
from giaann_dask.text.memory_inputs import Source
from giaann_dask.text.read_options import ReadOptions
from giaann_dask.text.reading import read_parts
from giaann_dask.text.subword_blocks import join_words
from giaann_dask.text.tokenizer import SubwordTokenizer, check_size

NONE = "none"
LEARN = "learn:"
_TIKTOKEN = "tiktoken:"


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
    encoded = [name for name in inputs if is_corpus(name)]
    if encoded:
        raise OptionError(
            f"the tokenizer is to be learnt from {encoded[0]}, which is encoded already",
            "text",
            "learn it from the text, with giaann-dask tokenizer train, or leave the option out",
        )
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
            for sentence in parse_conllu(passage, part.source):
                yield join_words(sentence)
