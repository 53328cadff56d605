"""Encode text with byte-level byte-pair encoding (BPE), independent of the source of the tokenizer.

The content of a tokenizer is the JSON of the package ``tokenizers``, reduced to the fields that affect encoding. It
comes from a file, from an encoding of ``tiktoken``, or is learnt from text.

Does not cover: the columns of subwords (`subword_blocks`) and the choice of a tokenizer
(`giaann_dask.encoding.lexicon`).
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
from giaann_dask.lazy import import_optional
from giaann_dask.library_internals import tiktoken_ranks
from giaann_dask.local_files import decode_utf8, local_path

EXTRA = "subwords"
BYTES = 256

# Words with the preceding blank or sign, contractions, up to three digits, punctuation, white space.
SPLIT_PATTERN = "|".join(
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    )
)
_MOST_SUBWORDS = 1 << 24
# A counted possessive quantifier (``{1,3}+``), which has another meaning in the regular expressions of tokenizers.
_POSSESSIVE = re.compile(r"(\{\d+,\d*\})\+")


def check_size(size: int) -> None:
    """Check the number of subwords of a tokenizer to learn; raise an `OptionError` if it is out of range."""
    if not BYTES < size <= _MOST_SUBWORDS:
        raise OptionError(
            f"the tokenizer's size is {size}", f"{BYTES + 1} to {_MOST_SUBWORDS}", "use a size such as 16384"
        )


class SubwordTokenizer:
    """Byte-level BPE tokenizer; equal content gives equal subwords in every process.

    Parameters
    ----------
    content : str
        JSON of the package ``tokenizers``: a byte-level BPE without normalisation. Added
        tokens, post-processing, truncation and padding are ignored.

    Raises
    ------
    InputFormatError
        If the content is not such a tokenizer.
    MissingDependencyError
        When encoding, if the package ``tokenizers`` is not installed.
    """

    def __init__(self, content: str) -> None:
        fields = _plain(content)
        self.content = json.dumps(fields, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        self.subwords = _subwords(fields["model"]["vocab"])
        self.names = tuple(_name(subword) for subword in self.subwords)
        if len(set(self.names)) < len(self.names):
            raise _no_tokenizer("a subword is spelled like the name of another", "distinct names of subwords")

    def __len__(self) -> int:
        """Return the number of subwords."""
        return len(self.subwords)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by content; each process creates the tokenizer once."""
        return open_content, (self.content,)

    def __dask_tokenize__(self) -> tuple[str, str]:
        """Return the deterministic token for Dask."""
        return type(self).__qualname__, self.identity()

    def identity(self) -> str:
        """Return 16 hexadecimal digits that identify the content."""
        return hashlib.blake2b(self.content.encode(), digest_size=8).hexdigest()

    def describe(self) -> dict[str, Any]:
        """Return size and identity, ready for JSON."""
        return {"subwords": len(self), "identity": self.identity()}

    def encode(self, text: str) -> list[int]:
        """Return the identifiers of a text's subwords; their joined bytes are those of the text."""
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
            If the file does not exist, or is not such a tokenizer.
        """
        path = local_path(path)
        try:
            data = path.read_bytes()
            content = decode_utf8(gzip.decompress(data) if path.suffix == ".gz" else data, str(path))
        except FileNotFoundError as error:
            raise InputMissingError(
                f"no file {path}", "a tokenizer", "give a file, learn:SIZE, tiktoken:NAME or none"
            ) from error
        except (OSError, EOFError, ValueError) as error:
            raise InputFormatError(f"{path} cannot be read ({error})", "JSON, or gzipped JSON named .gz") from error
        return open_content(content)

    @classmethod
    def from_tiktoken(cls, name: str) -> SubwordTokenizer:
        """Return an encoding of the package ``tiktoken``, which downloads it on first use.

        Raises
        ------
        MissingDependencyError
            If the package is not installed.
        OptionError
            If the encoding does not exist, or cannot be downloaded.
        """
        package = import_optional("tiktoken", EXTRA)
        try:
            encoding = package.get_encoding(name)
        # The exceptions depend on the library that downloads.
        except Exception as error:
            raise OptionError(
                f"the tiktoken encoding {name!r} cannot be loaded ({type(error).__name__}: {error})",
                f"one of {', '.join(package.list_encoding_names())}, and network access",
                "name one of these, give a tokenizer's file, or learn one with learn:SIZE",
            ) from error
        return cls.from_ranks(*tiktoken_ranks(encoding))

    @classmethod
    def from_ranks(cls, ranks: Mapping[bytes, int], pattern: str) -> SubwordTokenizer:
        """Return the BPE tokenizer of merge ranks and a split pattern, as ``tiktoken`` defines encodings.

        Parameters
        ----------
        ranks : mapping of bytes to int
            Identifier of every subword, from 0; the pair whose joined bytes have the lowest rank is merged first.
        pattern : str
            Regular expression of the pieces; subwords are merged within a piece only.
        """
        letters = _letters()
        vocabulary = {"".join(letters[byte] for byte in subword): rank for subword, rank in ranks.items()}
        merges = [
            ["".join(letters[byte] for byte in half) for half in _halves(subword, ranks)]
            for subword in sorted(ranks, key=lambda each: ranks[each])
            if len(subword) > 1
        ]
        model = {"type": "BPE", "vocab": vocabulary, "merges": merges, "ignore_merges": True}
        return open_content(
            json.dumps({"model": model, "pre_tokenizer": _pre_tokenizer(_POSSESSIVE.sub(r"\1", pattern))})
        )

    @classmethod
    def learn(cls, texts: Iterable[str], size: int) -> SubwordTokenizer:
        """Learn a tokenizer from texts.

        Parameters
        ----------
        texts : iterable of str
            Texts; subwords are merged within a text only.
        size : int
            Maximum number of subwords, more than 256 (all single bytes are included).

        Raises
        ------
        OptionError
            If the size is 256 or less.
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
    """Return the tokenizer of some content; cached per process."""
    return SubwordTokenizer(content)


def _plain(content: str) -> dict[str, Any]:
    """Return the fields of a tokenizer's content that affect encoding, and check them."""
    try:
        given = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _no_tokenizer(f"it is not JSON ({error})", "JSON of the package tokenizers") from error
    model = given.get("model") if isinstance(given, dict) else None
    if not isinstance(model, dict) or model.get("type") != "BPE" or not isinstance(model.get("vocab"), dict):
        raise _no_tokenizer("its model is not BPE", "a byte-level BPE")
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
    """Return the bytes of every subword by identifier."""
    of_letter = {letter: byte for byte, letter in enumerate(_letters())}
    found: list[bytes] = [b""] * len(vocabulary)
    for letters, number in vocabulary.items():
        try:
            found[number] = bytes(of_letter[letter] for letter in letters)
        except (KeyError, IndexError, TypeError):
            raise _no_tokenizer(f"its subword {letters!r} has the number {number!r}", "bytes numbered from 0") from None
    missing = BYTES - len(set(found).intersection(bytes([byte]) for byte in range(BYTES)))
    if missing or b"" in found:
        raise _no_tokenizer(f"it lacks {missing} single bytes, or has an empty subword", "all 256 single bytes")
    return tuple(found)


def _name(subword: bytes) -> str:
    """Return a subword's text, or its bytes in hexadecimal if they are not valid UTF-8."""
    try:
        return subword.decode("utf-8")
    except UnicodeDecodeError:
        return f"<byte:{subword.hex()}>"


@functools.cache
def _letters() -> tuple[str, ...]:
    """Return the character of each byte in byte-level BPE: itself if it is printable Latin-1."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(BYTES, 2 * BYTES))
    return tuple(chr(byte) if byte in printable else chr(next(others)) for byte in range(BYTES))


def _halves(subword: bytes, ranks: Mapping[bytes, int]) -> Sequence[bytes]:
    """Return the two subwords whose merge yields a subword: the parts before the last merge."""
    parts = [subword[at : at + 1] for at in range(len(subword))]
    while len(parts) > 2:
        pairs = [ranks.get(parts[at] + parts[at + 1], len(ranks)) for at in range(len(parts) - 1)]
        best = min(range(len(pairs)), key=pairs.__getitem__)
        if pairs[best] >= ranks[subword]:
            raise _no_tokenizer(f"nothing joins to its subword {subword!r}", "ranks of a byte-level BPE")
        parts[best : best + 2] = [parts[best] + parts[best + 1]]
    return parts


def _pre_tokenizer(pattern: str) -> dict[str, Any]:
    """Return the pre-tokenizer that splits text by a pattern and maps bytes to characters."""
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {"type": "Sequence", "pretokenizers": [split, level]}


def _no_tokenizer(received: str, expected: str) -> InputFormatError:
    return InputFormatError(
        f"the tokenizer cannot be used: {received}", expected, "name another file, or learn a tokenizer with learn:SIZE"
    )
