"""Check what import-linter (`pyproject.toml`) cannot: CUDA in one module, public names, names of modules in text."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.parsed_modules import parsed

import giaann_dask as gd
import giaann_dask.api
from giaann_dask.registry import BUILT_IN

ROOT = Path(__file__).resolve().parent.parent / "giaann_dask"


@pytest.fixture(scope="module", autouse=True)
def _trees_are_forgotten() -> Iterator[None]:
    """They are millions of objects."""
    yield
    parsed.cache_clear()


def test_cuda_is_named_in_one_place() -> None:
    named = [
        path.relative_to(ROOT).as_posix()
        for path in sorted(ROOT.rglob("*.py"))
        if any(isinstance(node, ast.Attribute) and node.attr == "cuda" for node in ast.walk(parsed(path)))
    ]
    assert named == ["device.py"]


# Packages of libraries whose modules are not documented; a module of them is private.
PRIVATE_PACKAGES = ("zarr.core", "numba.core", "numba.np", "uvicorn.protocols")
# Private attributes of the package's own base classes in other libraries, and of a documented name.
OWN_ATTRIBUTES = {"_asdict", "_repr_png_", "_loop_runner"}


def private_names(tree: ast.AST, own: set[str]) -> Iterator[str]:
    """Yield the private names of other libraries that a module imports or reads."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names]
            for module in modules:
                parts = module.split(".")
                if parts[0] not in ("giaann_dask", "__future__"):
                    names = [*parts, *(each.name for each in node.names)]
                    if module.startswith(PRIVATE_PACKAGES) or any(name.startswith("_") for name in names):
                        yield ast.unparse(node)
        elif isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr) and node.attr not in own | OWN_ATTRIBUTES:
            yield ast.unparse(node)


def test_private_names_of_libraries_are_in_one_place() -> None:
    trees = {path: parsed(path) for path in sorted(ROOT.rglob("*.py"))}
    own: set[str] = set()
    for path, tree in trees.items():
        if path.name != "library_internals.py":
            for node in ast.walk(tree):
                match node:
                    case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                        own.add(name)
                    case ast.Attribute(value=ast.Name(id="self" | "cls" | "made"), attr=name, ctx=ast.Store()):
                        own.add(name)
                    case ast.AnnAssign(target=ast.Name(id=name)) | ast.Name(id=name, ctx=ast.Store()):
                        own.add(name)
    found = {path.relative_to(ROOT).as_posix(): [*private_names(tree, own)] for path, tree in trees.items()}
    assert found.pop("library_internals.py")
    assert {name: names for name, names in found.items() if names} == {}


def test_every_public_name_is_completed_and_can_be_imported() -> None:
    assert [name for name in dir(gd) if not name.startswith("__")] == sorted(gd.__all__)
    for name in gd.__all__:
        assert getattr(gd, name).__name__ == name
        assert name in vars(gd), "imported once"
        assert getattr(giaann_dask.api, name) is getattr(gd, name)
    for package in (gd, giaann_dask.api):
        with pytest.raises(AttributeError, match="nothing"):
            assert package.nothing  # type: ignore[attr-defined]


def test_every_module_that_text_names_is_there() -> None:
    """Of ``giaann_dask.a.b.name``, the longest part that is a module must hold the name."""
    defined: dict[str, set[str]] = {}
    for path in ROOT.rglob("*.py"):
        module = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
        tree = parsed(path)
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        defined[module] = {node.name for node in ast.walk(tree) if isinstance(node, kinds)}
        assigned = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
        defined[module] |= {name.id for node in assigned for name in ast.walk(node) if isinstance(name, ast.Name)}
    defined["giaann_dask"] |= set(gd.__all__)
    pages = [*ROOT.rglob("*.py"), *(ROOT.parent / "docs").rglob("*.md"), *ROOT.parent.glob("*.md")]
    missing = []
    for path in pages:
        for named in re.findall(r"`(giaann_dask(?:\.\w+)+)`", path.read_text(encoding="utf-8")):
            parts = named.split(".")
            end = next(end for end in range(len(parts), 0, -1) if ".".join(parts[:end]) in defined)
            if end < len(parts) and parts[end] not in defined[".".join(parts[:end])]:
                missing.append((path.name, named))
    assert missing == []


# Names of libraries that docstrings use without importing them.
ELSEWHERE = {"KeyboardInterrupt", "KneserNeyInterpolated", "LocalCUDACluster", "LocalCluster", "sizeof"}
LIBRARIES = {"dask", "difflib", "distributed", "multiprocessing", "threading"}


def test_docstrings_name_modules_and_objects_that_exist() -> None:
    """Also by the last parts of their names, as in `rows.remote`; a renamed module leaves no reference behind."""
    trees = {path: parsed(path) for path in ROOT.rglob("*.py")}
    modules: set[str] = set()
    defined: set[str] = set()
    for path, tree in trees.items():
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        modules |= {".".join(parts[at:]).removesuffix(".__init__") for at in range(len(parts))}
        for node in ast.walk(tree):
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    defined.add(name)
                case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                    defined.add(name)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    stale = []
    for path, tree in trees.items():
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
        imported = {(each.asname or each.name).split(".")[0] for node in imports for each in node.names}
        outside = imported | LIBRARIES | ELSEWHERE
        for node in ast.walk(tree):
            text = (ast.get_docstring(node) or "") if isinstance(node, documented) else ""
            for named in re.findall(r"(?<!`)`([A-Za-z_]\w*(?:\.\w+)*)`(?!`)", text):
                *owner, last = named.split(".")
                owned = not owner or owner[-1] in defined or ".".join(owner) in modules
                if named not in modules and named.split(".")[0] not in outside and not (owned and last in defined):
                    stale.append((path.name, named))
    assert stale == []


def test_profiles_of_hypothesis_decide_how_many_examples_are_tried() -> None:
    """A number in `settings` would be the same for `make test-all`; `support.examples.examples` scales it."""
    tests = Path(__file__).resolve().parent
    pinned = [path.name for path in tests.rglob("*.py") if re.search(r"max_examples=\d", path.read_text("utf-8"))]
    assert pinned == []


def test_nothing_is_compiled_where_it_is_imported() -> None:
    """The scheduler imports the modules of tasks: types as an argument of njit would keep it busy for half a minute."""
    options = {"cache", "error_model", "nogil", "inline", "no_cpython_wrapper", "no_cfunc_wrapper"}
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "njit":
                assert not node.args, path
                assert {each.arg for each in node.keywords} <= options, path


# Modules outside `models` that serve concept columns alone: their pictures, tables and rules, and their measurements.
COLUMN_TOOLS = (
    *("__init__", "api/calibration", "api/columns", "api/network", "cli/commands"),
    *("cli/output", "cli/draw", "cli/shared_options", "diagnostics/evaluation_report"),
    *("diagnostics/network_report/", "diagnostics/pictures/", "workflows/recurring"),
)
# Where the models of this package are listed and specified, and user interfaces that offer them by name.
NAMES = ("registry", "encoding/sources", "cli/jobs", "cli/shared_options", "workflows/")


def test_no_other_code_asks_which_model_a_network_has() -> None:
    named, imported = [], []
    for path in sorted(ROOT.rglob("*.py")):
        place = path.relative_to(ROOT).with_suffix("").as_posix()
        if place.startswith("models/"):
            continue
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Constant) and node.value in BUILT_IN and not place.startswith(NAMES):
                named.append(f"{place}:{node.lineno}")
            if isinstance(node, ast.Attribute) and node.attr == "has_columns":
                named.append(f"{place}:{node.lineno}")
            module = getattr(node, "module", None) or ""
            inside = module.startswith(("giaann_dask.models.columns", "giaann_dask.models.contexts"))
            if inside and not place.startswith(COLUMN_TOOLS):
                imported.append(f"{place}:{node.lineno} {module}")
    assert (named, imported) == ([], [])


def test_no_two_public_classes_share_a_name() -> None:
    modules = defaultdict[str, list[str]](list)
    for path in sorted(ROOT.rglob("*.py")):
        for node in parsed(path).body:
            if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
                continue
            # A class of a library that is extended under its own name is no second thing.
            if not any(isinstance(base, ast.Attribute) and base.attr == node.name for base in node.bases):
                modules[node.name].append(path.relative_to(ROOT).as_posix())
    assert {name: its for name, its in modules.items() if len(its) > 1} == {}


def test_the_lexicon_tagger_imports_nothing_else_of_this_package() -> None:
    """It could be a package of its own."""
    named = set[str]()
    for path in (ROOT / "text" / "lexicon").glob("*.py"):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, path.name
                named.add(node.module or "")
            elif isinstance(node, ast.Import):
                named.update(alias.name for alias in node.names)
    ours = {name for name in named if name.split(".")[0] == "giaann_dask"}
    assert ours, "modules of the folder import one another"
    assert [name for name in sorted(ours) if not f"{name}.".startswith("giaann_dask.text.lexicon.")] == []


# Private names of other modules that tests use or replace. It only becomes smaller.
PRIVATE_NAMES = 29
# Methods of named tuples, of IPython and of file systems of fsspec, operators of PyTorch, names of Python and of click.
PUBLIC = {"_asdict", "_fields", "_replace", "_repr_html_", "_repr_png_", "_strip_protocol"}
PUBLIC |= {"_local_scalar_dense", "_make_wrapper_subclass", "_to_copy", "_unique2"}
PUBLIC |= {"_exit", "_thread", "_GIAANN_DASK_COMPLETE"}


def test_no_more_private_names_are_used_by_tests() -> None:
    """As attributes, imports, or strings with which they are replaced."""
    replaced = re.compile(r"_[A-Z][A-Z0-9_]*|giaann_dask\.[\w.]+\._\w+")
    found = []
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        for node in ast.walk(parsed(path)):
            match node:
                case ast.Attribute(value=ast.Name(id="self" | "cls")):
                    continue
                case ast.Attribute(attr=name):
                    pass
                case ast.Call(func=ast.Attribute(attr="setattr"), args=[_, ast.Constant(value=str(name)), *_]):
                    # Of constants the string is counted, wherever it is.
                    name = "" if replaced.fullmatch(name) else name
                case ast.alias(name=name):
                    pass
                case ast.Constant(value=str(text)) if replaced.fullmatch(text):
                    name = text.rpartition(".")[2]
                case _:
                    continue
            if re.match(r"_[^_]", name) and name not in PUBLIC:
                found.append(f"{path.name}:{getattr(node, 'lineno', 0)} {name}")
    assert len(found) <= PRIVATE_NAMES, found
