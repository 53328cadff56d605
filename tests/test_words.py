"""Check that names and first lines of docstrings use plain technical terms (CONTRIBUTING.md, "Words")."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from support.parsed_modules import parsed

ROOT = Path(__file__).resolve().parent.parent / "giaann_dask"
# Metaphors, translated idioms and riddles; each has a technical term (CONTRIBUTING.md).
BANNED = re.compile(
    r"\b(house|rooms?|faces|doors?|knocks?|forgiv\w+|flying|visits?|come by|comes by|is told|are told|lets? in|"
    r"who asks|who is there|whoever|for good|once more|under way|on (its|their) way|as good as)\b",
    re.IGNORECASE,
)
# Translated idioms that readers of the documents did not understand.
PHRASES = re.compile(
    r"\b(are ours|is ours|of ours|given again|takes? ratios|trained apart|made again|to the byte of|is no sum|"
    r"no sum over|words read lately|what travels|runners-up|counts? nowhere|beside (much )?other work|"
    r"(clusters?|workers?|schedulers?) (of yours|that we start)|imitated hosts?)\b",
    re.IGNORECASE,
)
# Descriptions by a subordinate clause: say what the object is or does instead.
CLAUSE = re.compile(r"^(What|Which|Who|Where|When|How) ")


def described() -> list[tuple[str, str]]:
    """Return the first line of the docstring of every module, class and function, with its place."""
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        tree = parsed(path)
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                first = (ast.get_docstring(node) or "").partition("\n")[0]
                found.append((f"{path.relative_to(ROOT)}:{getattr(node, 'name', '')}", first))
    return found


def names() -> list[tuple[str, str]]:
    """Return the words of the name of every module, class, function and parameter, with its place."""
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        found.append((str(path.relative_to(ROOT)), path.stem.replace("_", " ")))
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.append((str(path.relative_to(ROOT)), _words(node.name)))
            elif isinstance(node, ast.arg):
                found.append((str(path.relative_to(ROOT)), _words(node.arg)))
    return found


def _words(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).replace("_", " ").strip()


def test_first_lines_of_docstrings_use_plain_terms() -> None:
    assert [(place, line) for place, line in described() if BANNED.search(line) or CLAUSE.match(line)] == []


def test_documents_use_plain_terms() -> None:
    top = ROOT.parent
    pages = [*top.glob("*.md"), *(top / "docs").rglob("*.md"), *(top / "notebooks").glob("*.ipynb")]
    read = [(page.relative_to(top).as_posix(), page.read_text(encoding="utf-8")) for page in sorted(pages)]
    assert len(read) > 50
    assert [(name, found.group()) for name, text in read for found in PHRASES.finditer(text)] == []


def test_names_use_plain_terms() -> None:
    assert sorted({(place, name) for place, name in names() if BANNED.search(name)}) == []


def test_each_name_of_a_class_has_one_meaning() -> None:
    places: dict[str, list[str]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name.lstrip("_"), []).append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
