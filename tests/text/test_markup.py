"""Markdown and reStructuredText are read as text without their markup."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from support.written_inputs import passages, write

from giaann_dask.errors import MissingDependencyError
from giaann_dask.text import markup
from giaann_dask.text.inputs import resolve_inputs
from giaann_dask.text.markup import unmarked_blocks

ROOT = Path(__file__).resolve().parents[2]
MARKDOWN = """---
title: Not read
---
<!-- nor this -->
<div align="center"><img src="a.png"><b>Shown</b> text</div>

# The *mill* `code` &amp; more #

A [link](https://x.org "title") and ![alt text](a.png) and <b>bold</b> text[^1],
second **line**, ~~struck~~ [ref][r] snake_case 2 * 3 * 4.

[r]: https://z.org

- item **one**

> quoted *text*

| Name | Age |
|------|:---:|
| *miller* | old |

```python
x = 1
```
"""
RST = """
=====
Title
=====

.. comment

A *mill* with ``code``, `a link <https://x.org>`_, :func:`~os.path.join` and :ref:`the baker <b>`. |sub|

.. |sub| replace:: Substituted.

- item one

.. note:: Mind the gap.

.. versionadded:: 1.2
   It was added.

.. deprecated:: 2.0 It was *removed*.

.. toctree::
   :maxdepth: 2

   other

.. code-block:: python
   :linenos:

   x = 1

.. include:: /etc/passwd

========  =====
Name      Age
========  =====
miller    old
========  =====

.. py:function:: grind(corn)
   :module: mill

   Grinds corn.

Broken `markup and **open
"""


def test_markdown(tmp_path: Path) -> None:
    for name in ("a.md", "a.markdown.gz"):
        assert [text for _, text in passages(write(tmp_path / name, MARKDOWN))] == [
            "Shown text",
            "The mill code & more",
            "A link and alt text and bold text, second line, struck ref snake_case 2 * 3 * 4.",
            "item one",
            "quoted text",
            "Name Age",
            "miller old",
            "x = 1",
        ]
    kept = passages(str(tmp_path / "a.md"), markup="keep")
    assert kept == passages(str(tmp_path / "a.md"), read_as="text")
    assert "# The *mill* `code` &amp; more #" in [text for _, text in kept]
    assert passages(write(tmp_path / "a", MARKDOWN), read_as="markdown") == passages(str(tmp_path / "a.md"))


@pytest.mark.parametrize("name", ["README.md", "SECURITY.md", "docs/how-to/corpus.md"])
def test_words_are_those_of_the_page_that_the_library_makes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    page = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(text)
    page = re.sub(r'<img [^>]*alt="([^"]*)"[^>]*>', r"\1", re.sub(r"<!--.*?-->", "", page, flags=re.DOTALL))
    expected = html.unescape(re.sub(r"<[^>]*>", " ", page)).split()
    assert "".join("".join(unmarked_blocks(text.split("\n"), "markdown")).split()) == "".join(expected)
    # What is read in pieces is the same, but for references to addresses elsewhere.
    whole = list(unmarked_blocks(text.split("\n"), "markdown"))
    monkeypatch.setattr(markup, "_PIECE_CHARACTERS", 400)
    if "\n[" not in text:
        assert list(unmarked_blocks(text.split("\n"), "markdown")) == whole


def test_restructuredtext(tmp_path: Path) -> None:
    pytest.importorskip("docutils", reason="needs docutils (extra rst)")
    assert [text for _, text in passages(write(tmp_path / "a.rst", RST))] == [
        "Title",
        "A mill with code, a link, os.path.join and the baker. Substituted.",
        "item one",
        "Mind the gap.",
        "It was added.",
        "It was removed.",
        "x = 1",
        "Name",
        "Age",
        "miller",
        "old",
        "Grinds corn.",
        "Broken `markup and **open",
    ]


def test_without_docutils_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setitem(__import__("sys").modules, "docutils", None)
    path = write(tmp_path / "a.rst", RST)
    with pytest.raises(MissingDependencyError, match=r"pip install 'giaann-dask\[rst\]'"):
        resolve_inputs([path])
    assert passages(path, markup="keep")[0] == (0, "===== Title =====")
