"""Every step of golden inference files, recomputed and compared; `test_batch` compares those of all files."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path

import pytest
from support.conformance import (
    golden_options,
    golden_run,
    inference_files,
)
from support.examples import covering_pairs
from support.golden_steps import EWT_FOLDERS, EWT_SAMPLE, SYN_FOLDER, follow

from giaann_dask.runs.run import Run


@pytest.fixture(scope="module")
def syn_run() -> Run:
    return golden_run(SYN_FOLDER)


def options_of(path: Path) -> tuple[object, ...]:
    """The text of a golden inference file, and its options."""
    _, text, *_ = path.name.split("_")
    options, ties_as_ours = golden_options(path)
    return text, *astuple(options), ties_as_ours


FILES = {options_of(path): path for path in inference_files(SYN_FOLDER)}


@pytest.mark.parametrize("path", [FILES[each] for each in covering_pairs([*FILES])], ids=lambda path: path.name[6:-9])
def test_synthetic_steps(path: Path, syn_run: Run) -> None:
    follow(path, syn_run)


def test_synthetic_files_are_all_there() -> None:
    assert len(inference_files(SYN_FOLDER)) == len(FILES) == 48


@pytest.mark.slow
@pytest.mark.parametrize("name", EWT_FOLDERS)
def test_ewt_sample(name: str, shared_folder: Path) -> None:
    folder = shared_folder / "golden" / "v1" / name
    run = golden_run(folder)
    for file in EWT_SAMPLE:
        follow(folder / file, run)


@pytest.mark.slow
@pytest.mark.parametrize("name", EWT_FOLDERS)
def test_ewt_steps(name: str, shared_folder: Path) -> None:
    folder = shared_folder / "golden" / "v1" / name
    run = golden_run(folder)
    files = inference_files(folder)
    assert len(files) == 34
    for path in files:
        follow(path, run)
