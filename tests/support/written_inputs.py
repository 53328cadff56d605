"""Helpers of the tests that read files: writing them, reading them, failing on them."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from giaann_dask.errors import GiaannError
from giaann_dask.text.read_options import ReadOptions
from giaann_dask.text.reading import read_parts

REST = "\t_\t_\t_\t_\t_"


def write(path: Path, content: str | bytes) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


def passages(*inputs: str, **options: Any) -> list[tuple[int, str]]:
    parts = read_parts(inputs, ReadOptions(**options))
    return [each for part in parts for each in zip(part.documents, part.passages, strict=True)]


def words(count: int, form: str = "cat") -> str:
    return "".join(f"{number}\t{form}\t{form}\tNOUN\tNN{REST}\n" for number in range(1, count + 1)) + "\n"


def fails_in(tmp_path: Path, error: type[GiaannError], name: str, content: str | bytes, **options: Any) -> str:
    path = write(tmp_path / name, content)
    with pytest.raises(error) as caught:
        list(read_parts([path], ReadOptions(**options)))
    message = str(caught.value)
    assert path in message
    assert "\n" not in message
    return message
