"""The architecture as a test: a module imports its own level or lower, and never in a circle."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import ModuleType

import pytest

import giaann_dask as gd
import giaann_dask.api

ROOT = Path(__file__).resolve().parent.parent / "giaann_dask"
# From the ground up; modules on one line may import each other, but not in a circle.
LEVELS = [
    ["errors", "spec", "spec_profiles", "events", "late", "optional", "representations", "device", "data"],
    ["dask_types", "storage"],
    ["text"],
    ["network"],
    ["cluster", "worker_setup"],
    ["encoding"],
    ["training", "inference", "diagnostics"],
    ["api", "serving"],
    ["cli", "workflows", "__init__", "__main__"],
]
LEVEL = {name: number for number, names in enumerate(LEVELS) for name in names}
LOWER_HALF = {name for names in LEVELS[:4] for name in names}


def imports() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
        uses = found.setdefault(name, set())
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                uses.add(node.module)
                uses.update(f"{node.module}.{alias.name}" for alias in node.names)
            elif isinstance(node, ast.Import):
                uses.update(alias.name for alias in node.names)
    return found


def room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def test_every_room_has_a_level() -> None:
    assert {room(module) for module in imports()} == set(LEVEL)


def test_nothing_imports_upward() -> None:
    graph = imports()
    wrong = [
        f"{module} imports {used}"
        for module, uses in graph.items()
        for used in uses
        if used in graph and used != "giaann_dask" and LEVEL[room(used)] > LEVEL[room(module)]
    ]
    assert not wrong


def test_no_circles() -> None:
    graph = imports()
    graph = {module: {used for used in uses if used in graph} - {module} for module, uses in graph.items()}
    while leaves := [module for module, uses in graph.items() if not uses]:
        graph = {m: uses.difference(leaves) for m, uses in graph.items() if m not in leaves}
    assert not graph, f"these import each other in a circle, or one that does: {sorted(graph)}"


def test_distributed_only_in_the_upper_half() -> None:
    wrong = [
        module
        for module, uses in imports().items()
        if room(module) in LOWER_HALF and any(u.split(".")[0] == "distributed" for u in uses)
    ]
    assert not wrong


def test_cuda_is_named_in_one_place() -> None:
    named = [
        path.relative_to(ROOT).as_posix()
        for path in sorted(ROOT.rglob("*.py"))
        if any(
            isinstance(node, ast.Attribute) and node.attr == "cuda"
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        )
    ]
    assert named == ["device.py"]


@pytest.mark.parametrize("package", [gd, giaann_dask.api], ids=lambda package: package.__name__)
def test_every_public_name_is_completed_and_leads_somewhere(package: ModuleType) -> None:
    assert [name for name in dir(package) if not name.startswith("__")] == sorted(package.__all__)
    for name in package.__all__:
        assert getattr(package, name).__name__ == name
        assert name in vars(package), "loaded once"
    with pytest.raises(AttributeError, match="nothing"):
        assert package.nothing


def test_every_module_that_text_names_is_there() -> None:
    """Of ``giaann_dask.a.b.name``, the longest part that is a module must hold the name."""
    defined: dict[str, set[str]] = {}
    for path in ROOT.rglob("*.py"):
        module = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        defined[module] = {node.name for node in ast.walk(tree) if isinstance(node, kinds)}
        assigned = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
        defined[module] |= {name.id for node in assigned for name in ast.walk(node) if isinstance(name, ast.Name)}
    defined["giaann_dask"] |= set(gd.__all__)
    defined["giaann_dask.api"] |= set(giaann_dask.api.__all__)
    pages = [*ROOT.rglob("*.py"), *(ROOT.parent / "docs").rglob("*.md"), *ROOT.parent.glob("*.md")]
    missing = []
    for path in pages:
        for named in re.findall(r"`(giaann_dask(?:\.\w+)+)`", path.read_text(encoding="utf-8")):
            parts = named.split(".")
            end = next(end for end in range(len(parts), 0, -1) if ".".join(parts[:end]) in defined)
            if end < len(parts) and parts[end] not in defined[".".join(parts[:end])]:
                missing.append((path.name, named))
    assert missing == []
