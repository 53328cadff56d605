"""Export a network of any model, and take its digest."""

from __future__ import annotations

from pathlib import Path

from giaann_dask.events import Observer, ignore
from giaann_dask.models import model_of
from giaann_dask.models.words.export import export_contents
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.export import ExportContents, Exported, digest_of_contents, write_export
from giaann_dask.store.table_files import Compression


def export_network(
    reader: CommitReader, path: str | Path, observer: Observer = ignore, compression: Compression = "default"
) -> Exported:
    """Write a commit to a table of coordinate arrays and files next to it; see `write_export`."""
    return write_export(reader, _contents_of(reader), path, observer, compression)


def digest_of(reader: CommitReader) -> str:
    """Return the SHA-256 of what an export of a commit contains; see `digest_of_contents`."""
    return digest_of_contents(reader, _contents_of(reader))


def _contents_of(reader: CommitReader) -> ExportContents:
    """Return the contents of an export; networks of models of other packages have one form, also without these."""
    specification = reader.manifest().specification
    if specification.package:
        return export_contents(reader, {})
    return model_of(specification).export_contents(reader)
