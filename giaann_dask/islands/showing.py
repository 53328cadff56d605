"""Describe island files and bundles as JSON-ready values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from giaann_dask.islands.archive import Archive
from giaann_dask.islands.bundle import BundleManifest, open_bundle, read_manifest
from giaann_dask.islands.definition import read_island

_SHOWN = ("signer", "island", "tagger", "groups", "sequences", "trained", "tokens")


def describe(path: Path, island: Path | None = None) -> dict[str, Any]:
    """Return what an island file or a bundle says about itself.

    Parameters
    ----------
    path : Path
        Either of them.
    island : Path, optional
        An island file with which a bundle is verified, all but its increments.

    Raises
    ------
    GiaannError
        If it is neither, or the bundle is not accepted.
    """
    if _is_json(path):
        read = read_island(path)
        return {
            "island": str(path),
            "identity": read.identity,
            "profile": read.specification.profile,
            "columns": len(read.concepts),
            "features": 1 + len(read.features),
            "commit": read.commit,
            "digest": read.digest,
            "keys": dict(read.keys),
        }
    if island is not None:
        bundle = open_bundle(path, read_island(island))
        counts = {name: getattr(bundle, name) for name in ("signer", "tagger", "sequences", "trained", "tokens")}
        texts = sum(map(bundle.has_text, range(len(bundle.groups))))
        return {"bundle": str(path), "verified": True, **counts, "groups": len(bundle.groups), "texts": texts}
    manifest = BundleManifest.parse(read_manifest(Archive(path)), path)
    return {"bundle": str(path), "verified": False, **{name: getattr(manifest, name) for name in _SHOWN}}


def _is_json(path: Path) -> bool:
    """Return whether a file begins as an island file does."""
    # What is no ordinary file may wait for a writer.
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return file.read(1) == b"{"
    except OSError:
        return False
