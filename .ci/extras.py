"""Check that every extra of pyproject.toml can be installed with its constraints; nothing is installed for it.

What is installed already is taken as it is, so that only the rest is looked up.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# dask-cuda prescribes another version of Dask than the README's commands install.
OF_THEIR_OWN = {"cuda": "constraints-cuda.txt"}
OTHERS = "constraints.txt"
LIMIT_S = 300


def resolve(constraints: str, requirements: list[str]) -> subprocess.Popen[str]:
    """Start to look for versions that fit together, by uv where it is installed: pip takes 20 times as long."""
    uv = Path(sys.executable).with_name("uv")
    command = [str(uv), "pip", "install", "--python", sys.executable]
    if not uv.exists():
        command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]
    command += ["--dry-run", "--quiet", "--constraint", str(ROOT / constraints), *requirements]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def main() -> int:
    """Resolve the extras of each file of constraints together; return 1 when some cannot be."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted: dict[str, list[str]] = {}
    for extra, requirements in project["optional-dependencies"].items():
        file = OF_THEIR_OWN.get(extra, OTHERS)
        wanted.setdefault(file, list(project["dependencies"])).extend(requirements)
    running = {file: resolve(file, requirements) for file, requirements in wanted.items()}
    failed = 0
    for file, process in running.items():
        try:
            _, said = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            said = f"no answer within {LIMIT_S} seconds; {process.communicate()[1]}"
        if process.returncode:
            failed = 1
            print(f"the extras of {file} cannot be installed together:\n{said}", file=sys.stderr)
    return failed


if __name__ == "__main__":
    sys.exit(main())
