"""Execute notebooks and write their outputs into them: `make notebooks`.

Outputs are trimmed: standard error, times of execution and long texts are left out, and paths of temporary folders are
shortened, so that a notebook changes when what it shows does.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
TIMEOUT_S = 300
# Characters of one output's text, and of its pictures and pages, beyond which it is left out.
MOST_TEXT, MOST_PICTURE = 4_000, 400_000
TEMPORARY = re.compile(r"/tmp/tmp[a-z0-9_]{8}")


def main(paths: list[Path]) -> None:
    """Execute notebooks in place; stop at the first error."""
    for path in paths:
        notebook = nbformat.read(path, as_version=4)
        client = NotebookClient(notebook, timeout=TIMEOUT_S, resources={"metadata": {"path": str(FOLDER)}})
        client.execute()
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)
            if cell.cell_type == "code":
                cell.outputs = list(trimmed(cell.outputs))
        notebook.metadata = {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
        path.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
        print(path.name)


def trimmed(outputs: list[Any]) -> Iterator[Any]:
    """Yield the outputs of a cell that are stored."""
    for output in outputs:
        if output.output_type == "stream":
            if output.name == "stdout":
                output.text = shortened(output.text)
                yield output
            continue
        if output.output_type in ("display_data", "execute_result"):
            output.data = dict(stored(output.data))
            output.pop("transient", None)
            if output.data:
                yield output


def stored(data: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the representations of an output that are small enough."""
    for kind, value in data.items():
        if not isinstance(value, str):
            continue
        if kind.startswith("text/plain"):
            yield kind, shortened(value)
        elif len(value) <= MOST_PICTURE:
            yield kind, TEMPORARY.sub("/tmp/folder", value)


def shortened(text: str) -> str:
    """Return a text without temporary names, cut where it is long."""
    text = TEMPORARY.sub("/tmp/folder", text)
    return text if len(text) <= MOST_TEXT else text[:MOST_TEXT] + "\n…\n"


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]] or sorted(FOLDER.glob("*.ipynb")))
