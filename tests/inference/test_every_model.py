"""What every model has to keep, by the models of this package."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.village import write_village

import giaann_dask as gd
from giaann_dask.errors import MissingDependencyError, SpecificationError
from giaann_dask.registry import find_model, name_model, naming_anew
from giaann_dask.testing import ModelTests

pytestmark = pytest.mark.cluster


class TestV1(ModelTests):
    profile = "v1"


class TestV2(ModelTests):
    profile = "v2"


class TestContexts(ModelTests):
    profile = "contexts"


@pytest.fixture(autouse=True)
def _names_are_forgotten() -> Iterator[None]:
    with naming_anew():
        yield


def test_a_model_that_cannot_be_imported_names_the_missing_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_model.py").write_text("import nothing_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    name_model("a_model:MODEL")
    with pytest.raises(MissingDependencyError, match="pip install nothing_there"):
        find_model("a_model:MODEL")
    for path in ("no_model:MODEL", "giaann_dask.no_module:MODEL"):
        name_model(path)
        with pytest.raises(MissingDependencyError, match=f"install the package {path.split('.')[0].split(':')[0]}"):
            find_model(path)
    name_model("giaann_dask.registry:MODEL")
    with pytest.raises(SpecificationError, match=r"giaann_dask\.registry, of the model .*, has no MODEL"):
        find_model("giaann_dask.registry:MODEL")


# Of a process that cannot import the model of a network.
_WITHOUT_MODEL = """
import json, sys
import giaann_dask as gd
from giaann_dask.store.backup import copy_commit
from giaann_dask.store.places import StorePlace
network = gd.open(sys.argv[1], profile="a_model_elsewhere:MODEL")
copy_commit(StorePlace(sys.argv[1]), StorePlace(sys.argv[2]))
try:
    network.generate("The captain")
except gd.errors.MissingDependencyError as error:
    refused = str(error)
digests = [network.digest(), gd.open(sys.argv[2]).digest()]
print(json.dumps([refused, network.describe()["connections"], *digests]))
"""


def test_a_network_without_its_model_can_be_copied_inspected_and_digested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = pytest.importorskip("skip_bigrams").__file__
    (tmp_path / "models").mkdir()
    shutil.copy(source, tmp_path / "models" / "a_model_elsewhere.py")
    with monkeypatch.context() as patched, gd.connect(workers=0) as client:
        patched.syspath_prepend(tmp_path / "models")
        text = write_village(tmp_path / "text.txt", 20, 1)
        network = gd.train(text, tmp_path / "net", client=client, profile="a_model_elsewhere:MODEL")
        digest = network.digest()
    arguments = [sys.executable, "-c", _WITHOUT_MODEL, str(tmp_path / "net"), str(tmp_path / "copy")]
    printed = subprocess.run(arguments, check=True, capture_output=True, text=True, timeout=120).stdout
    refused, connections, *digests = json.loads(printed)
    assert "install the package a_model_elsewhere" in refused
    assert connections == network.manifest.connections > 0
    assert digests == [digest, digest]
