"""Add the notebooks to the site as pages, with the outputs that are stored in them; a hook of MkDocs (`mkdocs.yml`)."""

from __future__ import annotations

import re
from base64 import b64encode
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from nbconvert import MarkdownExporter

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"


def on_files(files: Files, config: Any) -> Files:
    """Add a page ``gallery/NAME.md`` for each notebook."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        files.append(File.generated(config, f"gallery/{path.stem}.md", content=page_of(path)))
    return files


def page_of(path: Path) -> str:
    """Return a notebook as Markdown; its pictures are part of the page."""
    text, resources = MarkdownExporter().from_filename(str(path))
    for name, content in resources.get("outputs", {}).items():
        kind = "svg+xml" if name.endswith(".svg") else name.rpartition(".")[2]
        text = text.replace(f"({name})", f"(data:image/{kind};base64,{b64encode(content).decode()})")
    # Tables and pictures keep the width that they have; the style sheets of data frames are not needed.
    text = re.sub(r"<style scoped>.*?</style>\n?", "", text, flags=re.DOTALL)
    return text.replace("\n\n", f"\n\n*`notebooks/{path.name}` of the repository.*\n\n", 1)
