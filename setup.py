"""Give the wheel its long description: the README, whose relative links lead nowhere on a package index.

All else is in pyproject.toml.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)]+)\)")


def long_description(readme: str, source: str | None) -> str:
    """Return a README whose links are absolute.

    Parameters
    ----------
    readme : str
        Markdown with links relative to the root of the repository.
    source : str, optional
        Address of the repository. Without one, relative links become their text, and relative pictures are left out.
    """

    def absolute(found: re.Match[str]) -> str:
        picture, text, path = found.groups()
        if source is None:
            return "" if picture else text
        return f"{picture}[{text}]({source}/{'raw' if picture else 'blob'}/main/{path})"

    return _LINK.sub(absolute, readme)


urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
setup(
    long_description=long_description((ROOT / "README.md").read_text(encoding="utf-8"), urls.get("Source")),
    long_description_content_type="text/markdown",
)
