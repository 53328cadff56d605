"""Fixtures shared by all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_folder() -> Path:
    """The folder of real text and golden files beside the checkout; skips where it is absent."""
    folder = ROOT.parent / "shared"
    if not (folder / "golden").is_dir():
        pytest.skip("needs the golden files and real text in ../shared, which is not here")
    return folder


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The synthetic conformance data that is part of the project."""
    return ROOT / "tests" / "data"
