"""Export a network of any model, and take its digest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from giaann_dask.errors import OptionError
from giaann_dask.events import Observer, ignore
from giaann_dask.local_files import local_path
from giaann_dask.models import model_of
from giaann_dask.models.base import ExportFormat
from giaann_dask.models.words.model import context_columns, export_contents
from giaann_dask.registry import BUILT_IN, find_model
from giaann_dask.spec import Specification
from giaann_dask.storage import require_local
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.export import SUFFIXES, Compression, ExportContents, Exported, digest_of_contents, write_export


def export_network(
    reader: CommitReader, path: str | Path, observer: Observer = ignore, compression: Compression = "default"
) -> Exported:
    """Write a commit to a table of coordinate arrays and files next to it, or to a format of its model.

    See `write_export` and `Model.export_formats`.

    Raises
    ------
    OptionError
        If the file is of a format that other models have.
    """
    path = local_path(path)
    write = None if path.suffix in SUFFIXES else _writer(reader.manifest().specification, path)
    if write is None:
        return write_export(reader, _contents_of(reader), path, observer, compression)
    require_local(path)
    write(reader, path, observer, compression)
    return Exported(path)


def digest_of(reader: CommitReader) -> str:
    """Return the SHA-256 of what an export of a commit contains; see `digest_of_contents`."""
    return digest_of_contents(reader, _contents_of(reader))


def _writer(specification: Specification, path: Path) -> ExportFormat | None:
    """Return the format of a file among those of a model, None where no model has it."""

    def of(formats: Mapping[str, ExportFormat]) -> ExportFormat | None:
        return next((each for ending, each in formats.items() if path.name.endswith(ending)), None)

    found = of(model_of(specification).export_formats())
    others = [name for name in BUILT_IN if found is None and of(find_model(name).export_formats())]
    if others:
        raise OptionError(
            f"{path.name} for a network of the model {specification.profile}",
            f"a file that ends with {' or '.join(SUFFIXES)}",
            f"name such a file; only {' and '.join(others)} can be exported to this format",
        )
    return found


def _contents_of(reader: CommitReader) -> ExportContents:
    """Return the contents of an export; those of other packages' models that have no own ones need no package."""
    specification = reader.manifest().specification
    if specification.package and not specification.own_exports:
        other = find_model(specification.base) if specification.base else None
        return export_contents(reader, {}, context_columns()) if other is None else other.export_contents(reader)
    return model_of(specification).export_contents(reader)
