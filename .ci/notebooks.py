"""Execute notebooks and write their outputs into them: `make notebooks`. With ``--check``, write nothing.

To check them, one kernel executes all, in memory that each clears: a kernel takes five seconds of imports.
Outputs are trimmed: standard error, times of execution and long texts are left out, paths of temporary folders are
shortened, and addresses of this machine are those of any, so that a notebook changes when what it shows does. Large
pictures get a palette of 256 colours.
"""

from __future__ import annotations

import base64
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client import KernelManager
from nbclient import NotebookClient
from PIL import Image

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
TIMEOUT_S = 300
# Characters of one output's text, and of its pictures and pages, beyond which it is left out.
MOST_TEXT, MOST_PICTURE = 4_000, 400_000
TEMPORARY = re.compile(r"/tmp/tmp[a-z0-9_]{8}")
# Of a notebook that another one came before.
BEFORE = """%reset_selective -f ^[^_]
import distributed
assert {client.status for client in distributed.Client._instances} <= {"closed"}, "the notebook before left a client"
"""
ADDRESS = re.compile(r"(?<=://)\d+(?:\.\d+){3}")


def check(paths: list[Path]) -> None:
    """Execute notebooks in one kernel; stop at the first error."""
    kernel = KernelManager(kernel_name="python3")
    try:
        for path in paths:
            notebook = nbformat.read(path, as_version=4)
            nbformat.validate(notebook)
            notebook.cells.insert(0, nbformat.v4.new_code_cell(BEFORE))
            resources = {"metadata": {"path": str(FOLDER)}}
            NotebookClient(notebook, km=kernel, timeout=TIMEOUT_S, resources=resources).execute(cleanup_kc=False)
            print(path.name, flush=True)
    finally:
        kernel.shutdown_kernel(now=True)


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
        elif kind == "image/png" and len(value) > MOST_PICTURE:
            yield kind, with_palette(value)
        elif len(value) <= MOST_PICTURE:
            yield kind, without_names(value)


def with_palette(picture: str) -> str:
    """Return a PNG picture with 256 colours, which takes a third of the space."""
    content = io.BytesIO()
    with Image.open(io.BytesIO(base64.b64decode(picture))) as image:
        image.convert("RGB").quantize(256).save(content, "png", optimize=True)
    return base64.b64encode(content.getvalue()).decode("ascii")


def without_names(text: str) -> str:
    """Return a text without names of temporary folders and addresses of this machine."""
    return ADDRESS.sub("127.0.0.1", TEMPORARY.sub("/tmp/folder", text))


def shortened(text: str) -> str:
    """Return a text without temporary names, cut where it is long."""
    text = without_names(text)
    return text if len(text) <= MOST_TEXT else text[:MOST_TEXT] + "\n…\n"


if __name__ == "__main__":
    given = sys.argv[1:]
    named = [Path(name) for name in given if name != "--check"] or sorted(FOLDER.glob("*.ipynb"))
    (check if "--check" in given else main)(named)
