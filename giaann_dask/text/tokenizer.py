"""Subword tokenizers: byte-level byte-pair encoding, with everything that it depends on in one text.

Covers: the content of a tokenizer as the package ``tokenizers`` writes it, reduced to what matters
here, where it comes from (a file, ``tiktoken``'s encodings, texts to learn from), and the bytes and
names of its subwords. Does not cover: what subwords mean for columns (`subword_blocks`), and which text
is learnt from (`giaann_dask.encoding.tokenizing`).
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from giaann_dask.errors import InputFormatError, InputMissingError, OptionError
from giaann_dask.optional import import_optional

EXTRA = "subwords"
BYTES = 256

# Words with the blank or sign before them, contractions, up to three digits, punctuation, white space.
SPLIT_PATTERN = "|".join(
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    )
)
# A possessive repetition of a counted one, which the library's regular expressions read otherwise.
_POSSESSIVE = re.compile(r"(\{\d+,\d*\})\+")


def check_size(size: int) -> None:
    """Raise an `OptionError` when no tokenizer with so many subwords can be learnt."""
    if not BYTES < size <= 1 << 24:
        raise OptionError(f"the tokenizer's size is {size}", f"more than {BYTES}", "choose another, such as 16384")


class SubwordTokenizer:
    """Divides text into subwords; the same wherever it is made from the same content.

    Parameters
    ----------
    content : str
        JSON as the package ``tokenizers`` writes it: a byte-level BPE without normalisation. Added
        tokens, post-processing, truncation and padding are left out.

    Raises
    ------
    InputFormatError
        If it is no such tokenizer.
    MissingDependencyError
        When it is used, if the package ``tokenizers`` is not installed.
    """

    def __init__(self, content: str) -> None:
        fields = _plain(content)
        self.content = json.dumps(fields, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        self.subwords = _subwords(fields["model"]["vocab"])
        self.names = tuple(_name(subword) for subword in self.subwords)
        if len(set(self.names)) < len(self.names):
            raise _no_tokenizer("a subword is spelled like the name of another", "names that tell subwords apart")

    def __len__(self) -> int:
        """Return the number of subwords."""
        return len(self.subwords)

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel by content; processes make it once."""
        return open_content, (self.content,)

    def __dask_tokenize__(self) -> tuple[str, str]:
        """Return what Dask knows it by."""
        return type(self).__qualname__, self.identity()

    def identity(self) -> str:
        """Return 16 hexadecimal digits, the same for the same content."""
        return hashlib.blake2b(self.content.encode(), digest_size=8).hexdigest()

    def describe(self) -> dict[str, Any]:
        """Return its size and identity, ready for JSON."""
        return {"subwords": len(self), "identity": self.identity()}

    def encode(self, text: str) -> list[int]:
        """Return the numbers of a text's subwords; their bytes are the text's, in order."""
        found: list[int] = self._encoder.encode(text, add_special_tokens=False).ids
        return found

    @functools.cached_property
    def _encoder(self) -> Any:
        return import_optional("tokenizers", EXTRA).Tokenizer.from_str(self.content)

    @classmethod
    def from_file(cls, path: str | Path) -> SubwordTokenizer:
        """Read a tokenizer from a JSON file; ``.gz`` is decompressed.

        Raises
        ------
        InputMissingError, InputFormatError
            If there is no such file, or it is no such tokenizer.
        """
        path = Path(path)
        try:
            data = path.read_bytes()
            content = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
        except FileNotFoundError as error:
            raise InputMissingError(
                f"no file {path}", "a tokenizer", "give a file, learn:SIZE, tiktoken:NAME or none"
            ) from error
        except (OSError, EOFError, ValueError) as error:
            raise InputFormatError(f"{path} cannot be read ({error})", "JSON, or gzipped JSON named .gz") from error
        return open_content(content)

    @classmethod
    def from_tiktoken(cls, name: str) -> SubwordTokenizer:
        """Return the encoding of that name of the package ``tiktoken``, which fetches it when it is new.

        Raises
        ------
        MissingDependencyError
            If the package is not installed.
        OptionError
            If there is no such encoding, or it cannot be fetched.
        """
        package = import_optional("tiktoken", EXTRA)
        try:
            encoding = package.get_encoding(name)
        # Which exceptions come depends on the package that fetches.
        except Exception as error:
            raise OptionError(
                f"the tiktoken encoding {name!r} cannot be had ({type(error).__name__}: {error})",
                f"one of {', '.join(package.list_encoding_names())}, and access to where they are kept",
                "choose another, give a tokenizer's file, or learn one with learn:SIZE",
            ) from error
        return cls.from_ranks(encoding._mergeable_ranks, encoding._pat_str)

    @classmethod
    def from_ranks(cls, ranks: Mapping[bytes, int], pattern: str) -> SubwordTokenizer:
        """Return the tokenizer that joins what a pattern divides by the ranks of what is joined.

        Parameters
        ----------
        ranks : mapping of bytes to int
            Number of every subword, from 0; a pair whose joined bytes have the lowest is joined first.
        pattern : str
            Regular expression of the pieces that nothing is joined across.
        """
        letters = _letters()
        vocabulary = {"".join(letters[byte] for byte in subword): rank for subword, rank in ranks.items()}
        merges = [
            ["".join(letters[byte] for byte in half) for half in _halves(subword, ranks)]
            for subword in sorted(ranks, key=lambda each: ranks[each])
            if len(subword) > 1
        ]
        model = {"type": "BPE", "vocab": vocabulary, "merges": merges, "ignore_merges": True}
        return open_content(json.dumps({"model": model, "pre_tokenizer": _division(_POSSESSIVE.sub(r"\1", pattern))}))

    @classmethod
    def learn(cls, texts: Iterable[str], size: int) -> SubwordTokenizer:
        """Learn a tokenizer from texts.

        Parameters
        ----------
        texts : iterable of str
            Texts; nothing is joined across their borders.
        size : int
            Subwords at most, more than the 256 bytes that are always among them.

        Raises
        ------
        OptionError
            If the size leaves no room.
        MissingDependencyError
            If the package ``tokenizers`` is not installed.
        """
        check_size(size)
        package = import_optional("tokenizers", EXTRA)
        learner = package.Tokenizer(package.models.BPE())
        split = package.pre_tokenizers.Split(package.Regex(SPLIT_PATTERN), "isolated")
        level = package.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        learner.pre_tokenizer = package.pre_tokenizers.Sequence([split, level])
        trainer = package.trainers.BpeTrainer(
            vocab_size=size, initial_alphabet=level.alphabet(), special_tokens=[], show_progress=False
        )
        learner.train_from_iterator(texts, trainer)
        return open_content(learner.to_str())


@functools.lru_cache(maxsize=8)
def open_content(content: str) -> SubwordTokenizer:
    """Return the tokenizer of some content; the same object each time within a process."""
    return SubwordTokenizer(content)


def _plain(content: str) -> dict[str, Any]:
    """Return what of a tokenizer's content says how text is divided, and check it."""
    try:
        given = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _no_tokenizer(f"it is not JSON ({error})", "JSON as the package tokenizers writes it") from error
    model = given.get("model") if isinstance(given, dict) else None
    if not isinstance(model, dict) or model.get("type") != "BPE" or not isinstance(model.get("vocab"), dict):
        raise _no_tokenizer("its model is no BPE", "a byte-level BPE")
    if given.get("normalizer") is not None:
        raise _no_tokenizer("it normalises text", "every byte of the text in its subwords")
    stages = given.get("pre_tokenizer") or {}
    stages = stages.get("pretokenizers", [stages])
    level = [stage for stage in stages if stage.get("type") == "ByteLevel"]
    if len(level) != 1 or level[0].get("add_prefix_space"):
        raise _no_tokenizer("it is not byte-level, or puts a space in front", "a byte-level BPE without added space")
    odd = [name for name in ("dropout", "unk_token", "continuing_subword_prefix") if model.get(name)]
    if odd or model.get("byte_fallback"):
        raise _no_tokenizer(f"its model has {odd or 'byte_fallback'}", "a plain byte-level BPE")
    kept = {"version": "1.0", "pre_tokenizer": given["pre_tokenizer"], "model": model}
    return (
        kept
        | dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
        | {"added_tokens": []}
    )


def _subwords(vocabulary: Mapping[str, int]) -> tuple[bytes, ...]:
    """Return the bytes of every subword by its number."""
    of_letter = {letter: byte for byte, letter in enumerate(_letters())}
    found: list[bytes] = [b""] * len(vocabulary)
    for letters, number in vocabulary.items():
        try:
            found[number] = bytes(of_letter[letter] for letter in letters)
        except (KeyError, IndexError, TypeError):
            raise _no_tokenizer(f"its subword {letters!r} has the number {number!r}", "bytes numbered from 0") from None
    missing = BYTES - len(set(found).intersection(bytes([byte]) for byte in range(BYTES)))
    if missing or b"" in found:
        raise _no_tokenizer(f"{missing} single bytes are no subwords of it, or one is empty", "all 256 of them")
    return tuple(found)


def _name(subword: bytes) -> str:
    """Return a subword's text, or its bytes in hexadecimal where they are no text by themselves."""
    try:
        return subword.decode("utf-8")
    except UnicodeDecodeError:
        return f"<byte:{subword.hex()}>"


@functools.cache
def _letters() -> tuple[str, ...]:
    """Return the letter that byte-level BPE writes for each byte: itself where it is printable Latin-1."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(BYTES, 2 * BYTES))
    return tuple(chr(byte) if byte in printable else chr(next(others)) for byte in range(BYTES))


def _halves(subword: bytes, ranks: Mapping[bytes, int]) -> Sequence[bytes]:
    """Return the two subwords whose joining makes a subword: what is left before the last join."""
    parts = [subword[at : at + 1] for at in range(len(subword))]
    while len(parts) > 2:
        pairs = [ranks.get(parts[at] + parts[at + 1], len(ranks)) for at in range(len(parts) - 1)]
        best = min(range(len(pairs)), key=pairs.__getitem__)
        if pairs[best] >= ranks[subword]:
            raise _no_tokenizer(f"nothing joins to its subword {subword!r}", "ranks of a byte-level BPE")
        parts[best : best + 2] = [parts[best] + parts[best + 1]]
    return parts


def _division(pattern: str) -> dict[str, Any]:
    """Return the stage that divides text by a pattern and writes bytes as letters."""
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {"type": "Sequence", "pretokenizers": [split, level]}


def _no_tokenizer(received: str, expected: str) -> InputFormatError:
    return InputFormatError(
        f"the tokenizer cannot be used: {received}", expected, "choose another, or learn one with learn:SIZE"
    )
