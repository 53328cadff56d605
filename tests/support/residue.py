"""Find words in files, as they are and in whatever they are compressed by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import zstandard
from numcodecs import blosc

_FRAME = b"\x28\xb5\x2f\xfd"
_MOST = 1 << 26


def residue(words: Sequence[str], *folders: Path) -> list[str]:
    """Return the files below folders that hold one of some words, with the word."""
    found = []
    for folder in folders:
        for file in sorted(each for each in folder.rglob("*") if each.is_file()):
            name = str(file.relative_to(folder))
            for content in (name.encode(), *_contents(file.read_bytes())):
                found += [f"{file}: {word}" for word in words if word.encode() in content]
    return found


def _contents(raw: bytes, depth: int = 3) -> Iterator[bytes]:
    """Yield bytes, and what the Zstandard and Blosc frames in them decompress to."""
    yield raw
    if not depth:
        return
    at = raw.find(_FRAME)
    while at >= 0:
        try:
            opened = zstandard.ZstdDecompressor().decompressobj()
            yield from _contents(opened.decompress(raw[at:])[:_MOST], depth - 1)
        except zstandard.ZstdError:
            pass
        at = raw.find(_FRAME, at + 1)
    # The chunks of arrays, which a checksum closes; Blosc trusts what a header says.
    chunk = raw[:-4]
    if chunk[:1] == b"\x02" and int.from_bytes(chunk[12:16], "little") == len(chunk) > 16:
        yield from _contents(bytes(blosc.decompress(chunk)), depth - 1)
