"""Every code block of the documentation is a test: ``pytest docs``.

Covers: which pages there are, and a folder for each. Does not cover: running a block (`page_blocks`).
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from sybil import Sybil

sys.path.insert(0, str(Path(__file__).parent))

from page_blocks import FOLDER, BlockParser


def _begin(namespace: dict[str, Any]) -> None:
    namespace[FOLDER] = tempfile.mkdtemp(prefix="giaann-page-")


def _end(namespace: dict[str, Any]) -> None:
    shutil.rmtree(namespace[FOLDER], ignore_errors=True)


# With GIAANN_DOCS_PROCESSES=1 every command is a process of its own, as it is for a reader, and slow blocks run.
pytest_collect_file = Sybil(
    parsers=[BlockParser(processes=bool(os.environ.get("GIAANN_DOCS_PROCESSES")))],
    pattern="*.md",
    setup=_begin,
    teardown=_end,
).pytest()
