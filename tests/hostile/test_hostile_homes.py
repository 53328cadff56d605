"""Importing, compiling and caching where the home folder is missing, no folder, or may not be entered.

`docker run --user` gives such homes. Nothing is made in the working directory, and no error ends an import.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.read_only import refuse_writing

from giaann_dask import local_files
from giaann_dask.cluster.devices import read_speeds, write_speeds
from giaann_dask.diagnostics import checkup

LONG = "a" * 300
HOMES = {
    "a folder that may not be entered": "locked",
    "a folder below one that may not be entered": "locked/home",
    "a file": "file",
    "below a file": "file/home",
    "a link to nothing": "dangling",
    "a link to itself": "loop",
    "too long a name": LONG,
    "read-only": "readonly",
}
# As they are given, not below the folder of the test.
ODD = {"empty": "", "relative": "here", "with a tilde": "~", "of no user": None}


def is_root_with_all_rights() -> bool:
    return os.geteuid() == 0


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make bad homes, with the package's folder read-only, in an empty working directory."""
    folder = tmp_path / "homes"
    (folder / "readonly").mkdir(parents=True, mode=0o500)
    (folder / "locked").mkdir(mode=0)
    (folder / "file").write_text("mine")
    (folder / "dangling").symlink_to(folder / "nothing")
    (folder / "loop").symlink_to(folder / "loop")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        # Set first, so that what the package sets is removed in the end.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    refuse_writing(monkeypatch, Path(local_files.__file__).parent)
    if is_root_with_all_rights():
        # Root enters any folder: the system's answers to other users.
        access, exists = os.access, Path.exists

        def refuse(path: Path) -> None:
            if "locked" in path.parts[:-1]:
                raise PermissionError(13, "Permission denied", str(path))

        def checked(path: Path) -> bool:
            refuse(path)
            return exists(path)

        monkeypatch.setattr(Path, "exists", checked)
        monkeypatch.setattr(
            os,
            "access",
            lambda path, mode: Path(path).name not in ("locked", "readonly") and access(path, mode),
        )
    yield folder
    (folder / "locked").chmod(0o700)


@pytest.mark.parametrize("variable", ["HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR"])
@pytest.mark.parametrize("home", [*HOMES, *ODD])
def test_a_bad_home_has_a_temporary_folder_for_compiled_code(
    places: Path, monkeypatch: pytest.MonkeyPatch, variable: str, home: str
) -> None:
    monkeypatch.setenv("HOME", str(places / "file"))
    monkeypatch.setattr("pwd.getpwuid", lambda number: {}[number])
    given = str(places / HOMES[home]) if home in HOMES else ODD[home]
    if given is None:
        monkeypatch.delenv(variable, raising=False)
        monkeypatch.delenv("HOME", raising=False)
    else:
        monkeypatch.setenv(variable, given)
    local_files.provide_code_cache()
    if variable == "NUMBA_CACHE_DIR" and home in ("relative", "with a tilde"):
        assert os.environ["NUMBA_CACHE_DIR"] == given, "the user's choice, which numba takes as it is"
        return
    folder = Path(os.environ["NUMBA_CACHE_DIR"])
    assert local_files.code_cache() == folder
    assert local_files.is_temporary(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert checkup.check_numba_cache().status == "note"
    if not (is_root_with_all_rights() and home in ("read-only", *list(HOMES)[:2])):
        with pytest.raises((NotADirectoryError, FileExistsError, OSError)):
            local_files.private_cache("tables")
        write_speeds("machine", {"sum": 2.0})
        assert read_speeds("machine") == {}
    assert not list(Path().iterdir()), "nothing in the working directory"


def test_a_home_that_can_be_written_is_used(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = places / "good"
    good.mkdir()
    monkeypatch.setenv("HOME", str(places / "file"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(good))
    local_files.provide_code_cache()
    assert os.environ["NUMBA_CACHE_DIR"] == str(good / "numba")
    assert local_files.private_cache("tables") == good / "giaann_dask" / "tables"
    # A folder that the user names, and that cannot be written, is not used, and the doctor says so.
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(places / "file"))
    assert local_files.code_cache() == good / "numba"
    assert f"as {places / 'file'} in NUMBA_CACHE_DIR cannot be written" in checkup.check_numba_cache().found


def test_a_command_works_without_a_home_it_may_enter(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0)
    plain = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    environment = {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
    probe = subprocess.run([*plain, "ls", str(home)], capture_output=True, check=False)
    if probe.returncode == 0 or b"Permission denied" not in probe.stderr:
        pytest.skip("needs a user who may not enter every folder")
    done = subprocess.run(
        [*plain, sys.executable, "-m", "giaann_dask", "--version"],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == [home]
    home.chmod(0o700)
