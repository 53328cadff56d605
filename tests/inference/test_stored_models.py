"""A stored network, island or corpus does not choose what is imported."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import dask
import pytest
from support.village import write_village

import giaann_dask as gd
from giaann_dask import registry
from giaann_dask.cli import run
from giaann_dask.errors import MissingDependencyError, ModelNotNamedError
from giaann_dask.islands.definition import generate_key
from giaann_dask.registry import TRUSTED, find_model, naming_anew
from giaann_dask.store.manifest import Manifest
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.text.ever_pos import EverPos

pytestmark = pytest.mark.cluster
NAME = "a_model_of_a_stranger"
PROFILE = f"{NAME}:MODEL"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of work with a network, a text, an island file and the module that these name."""
    path = tmp_path_factory.mktemp("work")
    shutil.copy(pytest.importorskip("skip_bigrams").__file__, path / f"{NAME}.py")
    text = write_village(path / "text.txt", 20, 1)
    with pytest.MonkeyPatch.context() as patched, naming_anew(), gd.connect(workers=0) as client:
        patched.syspath_prepend(path)
        specification = gd.Specification(profile=PROFILE, trace=True)
        gd.train(text, path / "net", client=client, specification=specification)
        keys = {"a": generate_key(path / "key")}
        gd.create_island(path / "base", path / "an.island", keys, specification=gd.Specification(profile="contexts"))
    stored = json.loads((path / "an.island").read_text())
    stored["specification"] = specification.as_dict()
    (path / "an.island").write_text(json.dumps(stored))
    return path


@pytest.fixture(autouse=True)
def _work(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work in the folder, whose modules can be imported and have not been."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    registry.clear_models()
    with naming_anew():
        yield


COMMANDS = (
    ["generate", "net", "The miller"],
    ["generate", "net", "The miller", "--workers", "1"],
    ["trace", "net", "The miller"],
    ["evaluate", "net", "text.txt", "--workers", "0"],
    ["serve", "net", "--port", "0", "--workers", "0"],
    ["diff", "net", "net", "--workers", "0"],
    ["add", "net", "net", "--out", "sum", "--workers", "0"],
    ["train", "text.txt", "--network", "net", "--workers", "0"],
    ["forget", "net", "--document", "text.txt", "--workers", "0"],
    ["report", "net", "--out", "page.html", "--workers", "0"],
    ["prune", "net", "--min-strength", "2", "--out", "pruned", "--workers", "0"],
    ["island", "join", "an.island", "joined"],
    [
        "island",
        "pack",
        "net",
        "text.txt",
        "--island",
        "an.island",
        "--key",
        "key",
        "--out",
        "a.bundle",
        "--workers",
        "0",
    ],
)
HARMLESS = (["inspect", "net"], ["log", "net"], ["compact", "net", "--workers", "0"], ["doctor", "--network", "net"])


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_commands_refuse_a_stored_import_path(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert f"give --profile {PROFILE}" in said[-1]
    assert NAME not in sys.modules


def test_a_corpus_does_not_choose_it_either(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    specification = gd.Specification(profile="v2")
    with monkeypatch.context() as patched, gd.connect(workers=0) as client:
        patched.setattr(gd.Specification, "text_rules", lambda _: {"profile": PROFILE})
        gd.encode("text.txt", tmp_path / "corpus", client=client, specification=specification)
    assert run(["train", str(tmp_path / "corpus"), "--network", str(tmp_path / "net"), "--workers", "0"]) == 2
    assert f"give --profile {PROFILE}" in capsys.readouterr().err
    assert NAME not in sys.modules


@pytest.mark.parametrize("command", HARMLESS, ids=" ".join)
def test_commands_that_need_no_model_import_none(command: list[str]) -> None:
    run(command)
    assert NAME not in sys.modules


def test_a_process_of_its_own_refuses_it_too(folder: Path) -> None:
    (folder / "marker").unlink(missing_ok=True)
    with (folder / f"{NAME}.py").open("a") as module:
        module.write('\nopen("marker", "w").close()\n')
    command = [sys.executable, "-m", "giaann_dask", "generate", "net", "The miller", "--workers", "1"]
    refused = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert refused.returncode == 2
    assert not (folder / "marker").exists()
    named = subprocess.run([*command, "--profile", PROFILE], cwd=folder, capture_output=True, text=True, timeout=120)
    assert named.returncode == 0, named.stderr
    assert (folder / "marker").exists()


def test_a_named_path_is_that_of_one_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", "net", "The miller", "--profile", PROFILE]) == 0
    assert run(["generate", "net", "The miller"]) == 2
    assert run(["generate", "net", "The miller", "--profile", f"{NAME}:OTHER"]) == 2
    assert run(["train", "text.txt", "--network", "net", "--workers", "0", "--profile", PROFILE]) == 0


def test_python_names_a_path_when_it_opens_the_network() -> None:
    with pytest.raises(ModelNotNamedError, match=rf"gd.open\(path, profile='{PROFILE}'\)"):
        gd.open("net").generate("The miller")
    assert NAME not in sys.modules
    with dask.config.set({TRUSTED: [PROFILE]}):
        assert gd.open("net").generate("The miller").text
    registry.clear_models()
    assert gd.open("net", profile=PROFILE).generate("The miller").text


def test_workers_import_what_their_client_has_named(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=":")
    network = gd.open("net", profile=PROFILE)
    with gd.connect(workers=1) as client:
        assert network.generate("The miller", client=client).text == network.generate("The miller").text


def _hide(name: str, folder: str, elsewhere: str) -> None:
    """Let a worker not find a module of a folder."""
    import os
    import sys

    sys.modules.pop(name, None)
    sys.path[:] = [place for place in sys.path if place not in ("", folder)]
    os.chdir(elsewhere)


def test_a_model_that_a_worker_cannot_import_names_the_worker(tmp_path: Path, folder: Path) -> None:
    network = gd.open("net", profile=PROFILE)
    with gd.connect(workers=1) as client:
        client.run(_hide, NAME, str(folder), str(tmp_path))
        with pytest.raises(MissingDependencyError, match=rf"worker tcp://.* on host .*{NAME}"):
            network.generate("The miller", client=client)


def test_entry_points_are_those_of_installed_distributions(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Find no entry point in the folder of work, and no module there that hides one of a package."""
    installed, local = folder / "site", folder / "local-1.dist-info"
    for place in (local, installed / "installed-1.dist-info"):
        place.mkdir(parents=True)
        (place / "METADATA").write_text(f"Name: {place.name.split('-')[0]}\nVersion: 1\n")
        (place / "entry_points.txt").write_text(f"[{registry.GROUP}]\n{place.name.split('-')[0]}-model = {PROFILE}\n")
    (installed / f"{NAME}.py").touch()
    (installed / "installed-1.dist-info" / "RECORD").write_text(f"{NAME}.py,,\n")
    sys.path.append(str(installed))
    try:
        assert "installed-model" in registry.registered_profiles()
        assert "local-model" not in registry.registered_profiles()
        with pytest.raises(MissingDependencyError, match="not installed"):
            find_model("local-model", "local")
        with pytest.raises(ModelNotNamedError, match=f"{NAME}.py has the name of one of the package installed"):
            find_model("installed-model", "installed")
    finally:
        sys.path.remove(str(installed))
        shutil.rmtree(local)
    assert NAME not in sys.modules


@pytest.mark.parametrize("fields", [{}, {"package": ""}, {"package": "numpy"}, {"package": 3}], ids=str)
def test_a_manifest_without_its_package_imports_nothing(fields: dict[str, object], tmp_path: Path) -> None:
    stored = {"profile": PROFILE, "seed_tokens": 8, "regions": 1, "model_options": {}, **fields}
    manifest = Manifest.new(gd.Specification.from_dict(stored))
    NetworkStore.create(tmp_path / "net", manifest, EverPos(), None, None)
    with pytest.raises(ModelNotNamedError):
        gd.open(tmp_path / "net").generate("The miller")
    assert NAME not in sys.modules
