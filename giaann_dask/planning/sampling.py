"""Take pieces of text that are spread evenly over all inputs, and divide them among groups that are alike.

Files that can be read from any byte on are read at the places of the pieces only; other inputs (compressed files,
tables, data sets, texts in memory) are read once from their beginning; every n-th piece is kept.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import giaann_dask as gd
from giaann_dask.errors import EmptyInputError
from giaann_dask.text.formats import COMPRESSED, Format
from giaann_dask.text.input_files import STANDARD_INPUT, StandardInput
from giaann_dask.text.inputs import Input, format_of, resolve_inputs
from giaann_dask.text.memory_inputs import MemoryInput, Source
from giaann_dask.text.read_options import ReadOptions
from giaann_dask.text.reading import read_parts

PIECE = 8192
"""Characters of a piece, about."""
_SEED = 1
# Ends of records of the formats that are read at any place.
_ENDS: dict[Format, bytes] = {"text": b"\n\n", "json": b"\n", "conllu": b"\n\n"}
# Bytes of CoNLL-U for a character of text, about.
_CONLLU_BYTES = 8
# Inputs that are read from their beginning at most, and characters of each of them.
_MOST_FILES, _MOST_READ = 64, 1 << 28
_Item = TypeVar("_Item")


class Piece(NamedTuple):
    """Text of one place of the inputs.

    Attributes
    ----------
    text : str
        Paragraphs, lines of JSON or sentences of CoNLL-U.
    form : str
        Its format.
    size : int
        Characters, or bytes of a piece of a file that was not read whole.
    """

    text: str
    form: Format
    size: int


@dataclass(frozen=True, kw_only=True)
class TextSample:
    """Pieces spread over inputs.

    Attributes
    ----------
    groups : tuple of tuple of Piece
        The pieces at random, in groups of about the same size.
    size : int
        Of all inputs, in the unit of `Piece.size`.
    density : int
        Bytes of a character of their text, about: more than 1 for CoNLL-U.
    whole : bool
        Whether the pieces are all of the text.
    unread : tuple of str
        Inputs whose pieces are from the beginning, because they are too long to be read.
    """

    groups: tuple[tuple[Piece, ...], ...]
    size: int
    density: int
    whole: bool
    unread: tuple[str, ...] = ()


class _SeekableFile(NamedTuple):
    """File that can be read from any byte on."""

    path: Path
    form: Format
    nbytes: int


def sample_inputs(inputs: Sequence[Source], options: ReadOptions, characters: int, groups: int) -> TextSample:
    """Return pieces that are spread evenly over the inputs.

    Parameters
    ----------
    inputs : sequence of str or MemoryInput
        As `giaann_dask.api.texts.read_inputs` returns them.
    options : ReadOptions
        How they are read.
    characters : int
        Of all pieces, about; shorter inputs are read whole.
    groups : int
        Groups that the pieces are divided into.

    Raises
    ------
    GiaannError
        If an input cannot be read, or none has any text.
    """
    places, others = _divide(resolve_inputs(inputs, options=options), options)
    total = sum(place.nbytes for place in places)
    density = _CONLLU_BYTES if any(place.form == "conllu" for place in places) else 1
    characters *= density
    if total <= characters:
        places, others, total = [], [*(str(place.path) for place in places), *others], 0
    # Of very many files, some are read.
    chosen = _spread(others, _MOST_FILES / max(len(others), 1))
    thinned, skipped = _Thinned(2 * characters), len(others) / max(len(chosen), 1)
    unread = tuple(str(each) for each in chosen if not thinned.read(each, options))
    total += round(thinned.characters * skipped)
    share = min(1.0, characters / max(total, 1))
    pieces = [*_spread(thinned.pieces, share * thinned.stride * skipped), *_cut_pieces(places, share, options)]
    if not pieces:
        raise EmptyInputError("the input holds no text", "at least one sentence", "check the files")
    random.Random(_SEED).shuffle(pieces)
    return TextSample(
        groups=tuple(tuple(pieces[number::groups]) for number in range(min(groups, len(pieces)))),
        size=total,
        density=density,
        whole=share * thinned.stride * skipped == 1.0 and not unread,
        unread=unread,
    )


def _divide(resolved: Sequence[Input], options: ReadOptions) -> tuple[list[_SeekableFile], list[Source]]:
    """Return the files that can be read from any byte on, and the other inputs."""
    places: list[_SeekableFile] = []
    others: list[Source] = []
    for each in resolved:
        seekable = isinstance(each, Path) and each.suffix.lower() not in COMPRESSED and each.is_file()
        if isinstance(each, Path) and seekable and (form := format_of(each, options)) in _ENDS:
            places.append(_SeekableFile(each, form, each.stat().st_size))
        elif isinstance(each, MemoryInput):
            others.append(each)
        else:
            others.append(STANDARD_INPUT if isinstance(each, StandardInput) else str(each))
    return places, others


class _Thinned:
    """Every n-th piece of some inputs, for an n that grows so that about twice the sample is kept."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = self._kept = 0
        self.pieces: list[Piece] = []
        self.stride, self.characters = 1, 0

    def read(self, source: Source, options: ReadOptions) -> bool:
        """Read an input; return whether it was read to its end."""
        before = self.characters
        # An empty file among others has no pieces.
        with suppress(EmptyInputError):
            for part in read_parts([source], replace(options, part_characters=PIECE)):
                if self._count % self.stride == 0:
                    self.pieces.append(Piece("\n\n".join(part.passages), part.kind, part.characters))
                    self._kept += part.characters
                self._count += 1
                self.characters += part.characters
                if self._kept > self._most and len(self.pieces) > 1:
                    self.pieces, self.stride = self.pieces[::2], 2 * self.stride
                    self._kept = sum(piece.size for piece in self.pieces)
                if self.characters - before > _MOST_READ:
                    return False
        return True


def _spread(pieces: Sequence[_Item], share: float) -> list[_Item]:
    """Return a share of some items, spread evenly."""
    count = round(min(share, 1.0) * len(pieces)) or min(len(pieces), 1)
    return [pieces[int((number + 0.5) * len(pieces) / count)] for number in range(count)]


def _cut_pieces(places: Sequence[_SeekableFile], share: float, options: ReadOptions) -> Iterator[Piece]:
    """Yield pieces of files, one at a random place of each of equal stretches of all bytes."""
    total = sum(place.nbytes for place in places)
    count = max(round(share * total / PIECE), 1) if places else 0
    rng = random.Random(_SEED)
    offsets = [int((number + rng.random()) * total / count) for number in range(count)]
    begin = 0
    for place in places:
        inside = [offset - begin for offset in offsets if begin <= offset < begin + place.nbytes]
        begin += place.nbytes
        if inside:
            with place.path.open("rb") as file:
                for offset in inside:
                    file.seek(offset)
                    text = _whole_records(file.read(PIECE), offset == 0, _ENDS[place.form])
                    if not text:
                        # A record longer than that.
                        file.seek(offset)
                        text = _whole_records(file.read(options.line_characters), offset == 0, _ENDS[place.form])
                    if text.strip():
                        yield Piece(text.decode("utf-8", "ignore"), place.form, len(text))


def _whole_records(data: bytes, first: bool, end: bytes) -> bytes:
    """Return the records of some bytes, without the one that began before and the last, which may be cut."""
    data = data.replace(b"\r\n", b"\n")
    # Paragraphs may be longer than a piece; then its whole lines are taken, but of CoNLL-U.
    for mark in (end, b"\n") if end == _ENDS["text"] else (end,):
        begin = 0 if first else data.find(mark) + len(mark)
        last = data.rfind(mark)
        if (first or begin >= len(mark)) and last > begin:
            return data[begin:last] + mark
    return b""


def write_pieces(pieces: Sequence[Piece], folder: Path) -> tuple[list[str], gd.Files]:
    """Return texts of pieces of plain text, and files with those of other formats, each of which is written."""
    texts = [piece.text for piece in pieces if piece.form not in ("json", "conllu")]
    files = []
    for form in ("json", "conllu"):
        found = [piece.text for piece in pieces if piece.form == form]
        if found:
            files.append(folder / f"{len(os.listdir(folder))}.{'jsonl' if form == 'json' else form}")
            files[-1].write_text("\n\n".join(found) if form == "conllu" else "\n".join(found), encoding="utf-8")
    return texts, gd.Files(files)
