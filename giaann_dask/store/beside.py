"""Keep documents beside a network that outlive a crash, and list what else lies beside it.

A document is JSON in a file whose name begins with that of the network, or in an object of the same bucket.

Does not cover: networks beside a network (`places`).
"""

from __future__ import annotations

import json
import os
import re
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

from giaann_dask.errors import StoreDamagedError
from giaann_dask.object_urls import is_object_store
from giaann_dask.storage import read_json_lines, read_limited, writing
from giaann_dask.store.places import StorePlace, answering

HISTORY = ".history.jsonl"
"""Suffix of the file with the history of a network's jobs (`giaann_dask.workflows.history`)."""
DOCUMENTS = ".documents.sqlite"
"""Suffix of the file with the documents of a server (`giaann_dask.serving.documents`)."""
# Fields of its lines that name files or networks that were made of the network.
_MADE = ("report", "to")
_MOST = 1 << 28


class DocumentBeside:
    """JSON document beside a network; its writer has the right to write the network.

    Parameters
    ----------
    path : Path
        Place of the network, absolute.
    suffix : str
        What the name has besides that of the network.
    """

    def __init__(self, path: Path, suffix: str) -> None:
        self._place = StorePlace(str(path))
        self._key = self._place.key + suffix
        self._file = None if is_object_store(path) else path.with_name(path.name + suffix)
        self.name = f"{path}{suffix}"

    def read(self) -> Any:
        """Return the value; None where there is no document.

        Raises
        ------
        StoreDamagedError
            If it is none.
        """
        try:
            content = self._content()
        except FileNotFoundError:
            return None
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as error:
            raise StoreDamagedError(f"{self.name} is not JSON", "what was written", "remove the file") from error

    def _content(self) -> bytes:
        if self._file is not None:
            return read_limited(self._file, _MOST)
        with answering(self.name):
            return bytes(self._place.objects().get(self._key).bytes())

    def write(self, value: Any) -> None:
        """Write the value, which is on the disk when this returns; what was there before stays if it cannot be.

        Raises
        ------
        StoreWriteError, StoreRefusedError, StoreUnreachableError
            If it cannot be written.
        """
        content = json.dumps(value).encode()
        with writing(self.name):
            if self._file is None:
                self._place.objects().put(self._key, content)
            else:
                _replace(self._file, content)

    def remove(self) -> None:
        """Remove the document, if there is one."""
        with writing(self.name), suppress(FileNotFoundError):
            if self._file is None:
                self._place.objects().delete(self._key)
            else:
                self._file.unlink()


def _replace(file: Path, content: bytes) -> None:
    """Replace a file in one step, which also survives that the machine stops; a link is replaced, not followed."""
    partial = file.with_name(f"{file.name}.{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(partial, file)
    finally:
        partial.unlink(missing_ok=True)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def made_of(path: Path) -> list[str]:
    """Return what is known to have been made of a network in a folder: networks beside it, reports and copies.

    Parameters
    ----------
    path : Path
        The folder, absolute. Of a network in an object store nothing is known.

    Returns
    -------
    list of str
        Networks that were left or kept beside it, the documents of a server, and the reports and copies in the history
        of its jobs that exist.
    """
    if is_object_store(path):
        return []
    with suppress(OSError):
        ours = re.compile(
            re.escape(path.name) + rf"\.([a-z]+-[0-9a-f]{{8}}|reports)|{re.escape(path.name + DOCUMENTS)}"
        )
        beside = [each for each in path.parent.iterdir() if ours.fullmatch(each.name)]
        lines = read_json_lines(path.with_name(path.name + HISTORY))
        named = {str(line[field]) for line in lines for field in _MADE if isinstance(line.get(field), str)}
        return sorted({*map(str, beside), *(name for name in named if is_object_store(name) or os.path.exists(name))})
    return []
