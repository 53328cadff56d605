"""The wheel: its metadata, its files, and the README's first block and a job run from it, without the checkout."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest
from support.fences import fenced

from giaann_dask.data import sample_test_text, sample_text

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
Run = Callable[..., str]
BUILD = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of the checkout, where nothing of an earlier build is left."""
    folder = tmp_path_factory.mktemp("built")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, folder)
    shutil.copytree(ROOT / "giaann_dask", folder / "giaann_dask", ignore=shutil.ignore_patterns("__pycache__"))
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(folder / "dist")], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (found,) = (folder / "dist").glob("*.whl")
    return found


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as file:
        (name,) = [each for each in file.namelist() if each.endswith(".dist-info/METADATA")]
        return message_from_bytes(file.read(name))


@pytest.fixture(scope="module")
def run(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Install the wheel in a folder; return a function that runs Python with it and the environment's dependencies."""
    folder = tmp_path_factory.mktemp("installed")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*install, "--target", str(folder), str(wheel)], check=True, capture_output=True)
    _take_compiled(folder)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    environment = {**os.environ, "PYTHONPATH": str(folder)}

    def python(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=elsewhere, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    found = Path(python("-c", "import giaann_dask; print(giaann_dask.__file__)").strip())
    assert found.parent == folder / "giaann_dask", "that of the wheel, not that of the checkout"
    return python


def _take_compiled(folder: Path) -> None:
    """Copy what numba compiled in the checkout, for sources that are the same; it knows them by their times."""
    for source in (folder / "giaann_dask").rglob("*.py"):
        origin = ROOT / source.relative_to(folder)
        assert source.read_bytes() == origin.read_bytes()
        shutil.copystat(origin, source)
        for compiled in (origin.parent / "__pycache__").glob(f"{source.stem}.*.nb[ic]"):
            (source.parent / "__pycache__").mkdir(exist_ok=True)
            shutil.copy2(compiled, source.parent / "__pycache__")


def test_metadata(metadata: Message) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert metadata["Name"] == "giaann-dask"
    assert metadata["Version"] == project["version"]
    assert f"version: {metadata['Version']}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    releases = re.findall(r"^## (\S+) ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert releases[0] == metadata["Version"]
    assert metadata["License-Expression"] == "MIT"
    assert metadata.get_all("Project-URL")
    python = [each.rpartition(" ")[2] for each in metadata.get_all("Classifier", []) if "Python :: 3." in each]
    assert [f">={python[0]}", f"<3.{int(python[-1].removeprefix('3.')) + 1}"] == project["requires-python"].split(",")


def test_the_description_is_the_readme_with_links_that_lead_somewhere(metadata: Message) -> None:
    description = str(metadata.get_payload(decode=True), "utf-8")  # type: ignore[arg-type]
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert [heading for heading in re.findall(r"^#+ .*", README, re.MULTILINE) if heading not in description] == []
    links = re.findall(r"\]\(([^)]+)\)", description)
    assert links
    assert [link for link in links if not re.match(r"https://|#", link)] == []


def test_relative_links_begin_with_the_repository_where_it_has_an_address() -> None:
    text = 'from setup import long_description; print(long_description("[a](b.md) ![c](d.svg) [e](https://f)", {}))'
    stub = "import sys, types; sys.modules['setuptools'] = types.SimpleNamespace(setup=lambda **_: None); "
    shown = [
        subprocess.run(
            [sys.executable, "-c", stub + text.format(source)], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()
        for source in ("None", "'https://host/x'")
    ]
    assert shown == [
        "a  [e](https://f)",
        "[a](https://host/x/blob/main/b.md) ![c](https://host/x/raw/main/d.svg) [e](https://f)",
    ]


def test_files(wheel: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "giaann_dask"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("needs a checkout of git, to know which files belong to the package")
    with zipfile.ZipFile(wheel) as file:
        packed = {name for name in file.namelist() if ".dist-info/" not in name}
        entry = next(name for name in file.namelist() if name.endswith("entry_points.txt"))
        assert "giaann-dask = giaann_dask.__main__:run" in file.read(entry).decode()
    assert packed == {name for name in listed.stdout.split() if (ROOT / name).exists()}
    assert {"giaann_dask/py.typed", "giaann_dask/data/sample.txt", "giaann_dask/serving/page/index.html"} <= packed


@pytest.mark.cluster
def test_the_first_block_of_the_readme_prints_what_the_next_one_shows(run: Run) -> None:
    blocks = fenced(README)
    (source,) = [block for language, block in blocks if language == "python"]
    shown = next(block for language, block in blocks if language == "text")
    # Where Dask has given the tasks of a region to several workers, as one was busy, none has all of it.
    printed, expected = (
        re.sub(r"(in memory of +)(no worker|[12] workers?)\b", r"\1", each)
        for each in (run("-c", source).strip(), shown)
    )
    assert printed == expected != shown


def test_a_job(run: Run, tmp_path: Path) -> None:
    assert "Train the new files of a folder" in run("-m", "giaann_dask", "job", "nightly", "--help")
    text = tmp_path / "texts" / "some.txt"
    text.parent.mkdir()
    text.write_text(sample_text().read_text(encoding="utf-8")[:3000], encoding="utf-8")
    places = ["--text", str(text.parent), "--network", str(tmp_path / "net"), "--evaluate", str(sample_test_text())]
    rules = ["--settle-s", "0", "--evaluate-sequences", "2", "--workers", "0", "--json"]
    entry = json.loads(run("-m", "giaann_dask", "job", "nightly", *places, *rules))
    assert (entry["job"], entry["exit"], entry["new_files"]) == ("nightly", 0, [str(text)])
    assert entry["training"]["sequences"] > 10
    assert entry["evaluation"]["prediction_tokens"] > 0
