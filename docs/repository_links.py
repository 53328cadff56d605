"""Give the site a link to its repository and each page a link to edit it; a hook of MkDocs (`mkdocs.yml`).

The address is "Source" of the project's URLs (`pyproject.toml`), else that of the checkout's remote ``origin``; without
either the site has no such links. ``repo_url`` is not set, as the theme would then load stars and forks from the host.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BRANCH = "main"
_REMOTE = re.compile(
    r"(?:https://|ssh://)?(?:[^@/]+@)?(?P<host>[\w-]+(?:\.[\w-]+)+)(?::\d+(?=/))?[:/](?P<path>.+?)(?:\.git)?/?"
)


def on_config(config: Any) -> None:
    """Set the links, where the repository has an address."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    address = urls.get("Source") or web_address(remote())
    if address is None:
        return
    config.edit_uri = f"{address}/edit/{BRANCH}/docs/"
    config.extra["social"] = [{"icon": "material/source-repository", "link": address, "name": "Repository"}]


def remote() -> str:
    """Return the address of the checkout's remote ``origin``; empty if there is none."""
    command = ["git", "config", "--get", "remote.origin.url"]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def web_address(remote: str) -> str | None:
    """Return the page of a remote of git, without credentials; None if it is no host."""
    found = _REMOTE.fullmatch(remote)
    return f"https://{found['host']}/{found['path']}" if found else None
