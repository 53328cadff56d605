"""Modules that a command must not import: each of them takes longer to import than the command needs to work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

import giaann_dask as gd
from giaann_dask.__main__ import run
from giaann_dask.data import sample_test_text

# Never needed by these commands in this process, on the CPU.
_NEVER = (
    *("torch", "spacy", "thinc", "lemminflect", "textblob", "bokeh", "matplotlib", "networkx", "pandas", "rich"),
    "scipy.linalg",
)
_CLUSTER = ("distributed", "dask")
_COMPILED = ("numba", "llvmlite", "scipy")
_STORE = ("zarr", "icechunk", "numpy")

# In this order, as they run in one process: later commands may import what earlier ones must not.
FORBIDDEN = {
    "--help": (*_NEVER, *_CLUSTER, *_COMPILED, *_STORE),
    "train --help": (*_NEVER, *_CLUSTER, *_COMPILED, *_STORE),
    "inspect {network}": (*_NEVER, *_CLUSTER, *_COMPILED),
    "inspect {network} --json": (*_NEVER, *_CLUSTER, *_COMPILED),
    "generate {contexts} {prompt}": (*_NEVER, *_CLUSTER, *_COMPILED),
    "generate {network} {prompt}": (*_NEVER, *_CLUSTER),
    "generate {network} {prompt} --explain": (*_NEVER, *_CLUSTER),
    "export {network} --out {folder}/out.npz": (*_NEVER, *_CLUSTER),
    "train {text} --network {folder}/new --workers 0": _NEVER,
    "evaluate {network} {text} --workers 0": _NEVER,
    "compact {network} --workers 0": _NEVER,
}

_REPORT = """
import json, sys
from giaann_dask.cli import run
for number, arguments in enumerate(json.load(sys.stdin)):
    status = run(arguments)
    with open(f"{sys.argv[1]}/{number}.json", "w") as out:
        json.dump([status, list(sys.modules)], out)
"""


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Return what is imported after each of the commands, which one process runs one after the other."""
    folder = tmp_path_factory.mktemp("imports")
    places = {name: f"{folder}/{name}" for name in ("network", "contexts")}
    places |= {"text": str(sample_test_text()), "folder": str(folder)}

    def arguments(command: str) -> list[str]:
        return [word.format(prompt="the miller carried the", **places) for word in command.split()]

    with gd.connect(workers=0) as client:
        gd.train(sample_test_text(), places["network"], client=client)
        gd.train(sample_test_text(), places["contexts"], profile="contexts", client=client)
    asked = json.dumps([arguments(command) for command in FORBIDDEN])
    # rich would draw, where these are set.
    plain = {key: value for key, value in os.environ.items() if key not in ("FORCE_COLOR", "TTY_COMPATIBLE")}
    report = [sys.executable, "-c", _REPORT, str(folder)]
    subprocess.run(report, input=asked, text=True, check=True, capture_output=True, env=plain)
    found = [json.loads((folder / f"{number}.json").read_text()) for number in range(len(FORBIDDEN))]
    assert {status for status, _ in found} == {0}
    return {command: modules for command, (_, modules) in zip(FORBIDDEN, found, strict=True)}


@pytest.mark.parametrize("command", FORBIDDEN)
def test_a_command_imports_nothing_that_it_does_not_need(imported: dict[str, list[str]], command: str) -> None:
    assert not set(FORBIDDEN[command]) & set(imported[command])


def test_the_table_is_in_the_order_in_which_it_is_checked() -> None:
    for earlier, later in zip(list(FORBIDDEN.values())[:-1], list(FORBIDDEN.values())[1:], strict=True):
        assert set(later) <= set(earlier)


def test_names_of_the_table_are_installed_packages(imported: dict[str, list[str]]) -> None:
    # A misspelled name would never be found; of these the last commands import some, and the others are installed.
    from importlib.util import find_spec

    assert {name for name in FORBIDDEN["--help"] if not find_spec(name)} <= {"torch"}
    assert {"zarr", "numba", "distributed"} <= set(imported["train {text} --network {folder}/new --workers 0"])


def test_an_interruption_while_modules_are_loaded_shows_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(name: str, *_: object) -> None:
        if name == "giaann_dask.cli":
            raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "giaann_dask.cli", raising=False)
    monkeypatch.setattr(sys, "meta_path", [SimpleNamespace(find_spec=interrupt), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "giaann-dask: interrupted\n"
