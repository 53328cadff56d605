"""The suffix of an export names its format; another suffix is refused before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from giaann_dask.errors import OptionError
from giaann_dask.store.export import export_names


@pytest.mark.parametrize(("name", "told"), [("x.foo", "ends with '.foo'"), ("x.npz.gz", "ends with '.gz'")])
def test_a_suffix_of_another_format_is_refused(tmp_path: Path, name: str, told: str) -> None:
    with pytest.raises(OptionError, match=told):
        export_names(tmp_path / name)


def test_a_device_is_refused() -> None:
    with pytest.raises(OptionError, match="/dev/null' is no file"):
        export_names("/dev/null")


def test_a_name_without_a_suffix_gets_one(tmp_path: Path) -> None:
    assert export_names(tmp_path / "x")[0] == tmp_path / "x.npz"
    assert export_names(tmp_path / "x.parquet")[2] == tmp_path / "x.neurons.parquet"
