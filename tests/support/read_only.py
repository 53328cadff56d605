"""Folders that refuse to be written, also for root."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest


def refuse_writing(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> None:
    """Let the system say that some folders, or all of them, cannot be written."""
    access = os.access

    def answer(path: Any, mode: int, **options: Any) -> bool:
        refused = bool(mode & os.W_OK) and (not folders or Path(path) in folders)
        return not refused and access(path, mode, **options)

    monkeypatch.setattr(os, "access", answer)
