"""Run commands and tests on the newest other Python of this machine, with the newest packages and without PyTorch.

The network that it writes, with Icechunk 2, is read and continued by the Python of the tests, with Icechunk 1, and then
written again by the other. With the argument ``install`` only the environment is made.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OTHERS = ("3.14", "3.13", "3.12")
PLACE = ROOT / ".venv" / "second-python"
INSTALLED = PLACE / "installed"
TESTS = ("tests/store/test_commits.py", "tests/store/test_icechunk_library.py", "tests/store/test_manifest.py")
FIRST, SECOND = ROOT / ".venv" / "bin", PLACE / "bin"
NOTE = "The captain hung the lantern on the old ship.\n"


def find() -> str | None:
    """Return the newest other Python that starts; of pyenv's commands in the path, some do not."""
    for version in OTHERS:
        installed = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
        for python in (shutil.which(f"python{version}"), *map(str, reversed(installed))):
            if python and not subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode:
                return python
    return None


def say(*command: str | Path) -> str:
    """Run a command, and return what it prints; end here if it fails."""
    done = subprocess.run([str(each) for each in command], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"second-python: {' '.join(map(str, command))} ended with {done.returncode}\n{done.stdout}")
    return done.stdout.strip()


def install(python: str) -> None:
    """Install the package with `constraints-newest.txt`, and what the tests need; train, which compiles."""
    if INSTALLED.exists():
        return
    say(FIRST / "uv", "venv", "--quiet", "--clear", "--python", python, PLACE)
    wanted = ("--constraint", "constraints-newest.txt", "--editable", ".", "pytest", "pytest-timeout", "hypothesis")
    say(FIRST / "uv", "pip", "install", "--quiet", "--python", SECOND / "python", *wanted)
    with tempfile.TemporaryDirectory() as folder:
        text = write_text(Path(folder))
        say(SECOND / "giaann-dask", "train", text, "--network", Path(folder) / "network", "--workers", "0", "--trace")
    INSTALLED.touch()


def write_text(folder: Path) -> Path:
    """Write the beginning of the sample text to a file of a folder."""
    text = folder / "text.txt"
    text.write_text((ROOT / "giaann_dask/data/sample.txt").read_text(encoding="utf-8")[:3000], encoding="utf-8")
    return text


def use(folder: Path) -> None:
    """Train, continue on the other Python, generate, forget and compare the digests."""
    text, note, network = write_text(folder), folder / "note.txt", folder / "network"
    note.write_text(NOTE, encoding="utf-8")
    there = ("--network", network, "--workers", "0")
    say(SECOND / "giaann-dask", "train", text, *there, "--trace")
    before = [say(each / "giaann-dask", "digest", network) for each in (FIRST, SECOND)]
    say(FIRST / "giaann-dask", "train", note, *there)
    # With a beam the state is pushed by NumPy: the kernel of single prompts would be compiled here for 12 s.
    beam = ("--beam-width", "2", "--beam-depth", "2", "--workers", "0")
    answer = say(SECOND / "giaann-dask", "generate", network, "The captain hung the lantern", *beam)
    say(SECOND / "giaann-dask", "forget", network, "--document", note, "--workers", "0")
    after = [say(each / "giaann-dask", "digest", network) for each in (SECOND, FIRST)]
    if not answer.startswith("on the ship.") or len({*before, *after}) != 1:
        sys.exit(f"second-python: it generates {answer!r}; digests before {before} and after {after}")


def main() -> None:
    """Say in one line what was run, or that there is no other Python."""
    python = find()
    if python is None:
        print(f"second-python: not run, there is no Python {', '.join(OTHERS)} in the path or of pyenv")
        return
    os.environ["PYTHONPATH"] = str(ROOT)
    install(python)
    if sys.argv[1:] == ["install"]:
        return
    with tempfile.TemporaryDirectory() as folder:
        use(Path(folder))
    tests = say(SECOND / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS).splitlines()[-1]
    print(f"second-python: {say(SECOND / 'python', '--version')}, commands and {tests}")


if __name__ == "__main__":
    main()
