"""What every model has to keep, by the models of this package."""

from __future__ import annotations

from pathlib import Path

import pytest

from giaann_dask.errors import MissingDependencyError
from giaann_dask.registry import find_model
from giaann_dask.testing import ModelTests

pytestmark = pytest.mark.cluster


class TestV1(ModelTests):
    profile = "v1"


class TestV2(ModelTests):
    profile = "v2"


class TestContexts(ModelTests):
    profile = "contexts"


def test_a_model_that_cannot_be_imported_names_the_missing_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_model.py").write_text("import nothing_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingDependencyError, match="pip install nothing_there"):
        find_model("a_model:MODEL")
    for path in ("no_model:MODEL", "giaann_dask.no_module:MODEL", "giaann_dask.registry:MODEL"):
        with pytest.raises(MissingDependencyError, match=f"install the package {path.split('.')[0].split(':')[0]}"):
            find_model(path)
