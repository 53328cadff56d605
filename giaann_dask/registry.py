"""Find models by name: those of this package, those that installed packages register, and import paths.

A package registers a model as an entry point of the group ``giaann_dask.models``; its name is the profile that networks
of the model have. `giaann_dask.models.base` says what a model is.

What is stored does not choose what is imported: a stored name stands for an entry point of an installed distribution,
and a stored import path ``module:attribute`` is refused unless the user named it (`name_model`) or lists it in Dask's
configuration. Workers import what their clients have checked, as they run all code that their clients send.

A model of this package has its `FieldRules` in its folder below `giaann_dask.models`: defaults, which values of the
fields of a specification go together, and which are stored. `giaann_dask.spec` has the specification itself.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, reduce
from importlib import import_module
from importlib.metadata import Distribution, EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from giaann_dask.errors import GiaannError, MissingDependencyError, ModelError, ModelNotNamedError, SpecificationError

if TYPE_CHECKING:
    from giaann_dask.models.base import Model
    from giaann_dask.spec import Specification

Profile = Literal["v1", "v2", "contexts"]
PROFILES: tuple[Profile, ...] = get_args(Profile)
DEFAULT_PROFILE: Profile = "v1"
# Names under which profiles are stored, where these differ: digests of networks depend on it.
STORED_PROFILES = {"contexts": "best"}

GROUP = "giaann_dask.models"
# Key of Dask's configuration: import paths of models that stored networks may have, a list.
TRUSTED = "giaann.trusted-models"
# Import paths that the user of this process named.
_named: set[str] = set()

TokenKind = Literal["words", "subwords"]
BranchOrder = Literal["occurrence", "random"]
OwnStrengths = Literal["segments", "tokens"]
ColumnNames = Literal["first", "span", "lemma"]
Flags = Literal["canonical", "history"]

TOKENS: tuple[TokenKind, ...] = get_args(TokenKind)
BRANCH_ORDERS: tuple[BranchOrder, ...] = get_args(BranchOrder)
OWN_STRENGTHS: tuple[OwnStrengths, ...] = get_args(OwnStrengths)
COLUMN_NAMES: tuple[ColumnNames, ...] = get_args(ColumnNames)
FLAGS: tuple[Flags, ...] = get_args(Flags)

# The flags of what is stored without any, and of networks that cannot have others.
HISTORY: Flags = "history"
# The value of a field that takes the default of its model; of the type of any field.
MODEL_DEFAULT: Any = None

# Values with which each sentence of words is a sequence, and all segments follow from the seed tokens.
PLAIN: Mapping[str, Any] = MappingProxyType(
    {
        "branches": 2,
        "tokens": "words",
        "lif": False,
        "sentences_per_sequence": 1,
        "crop": False,
        "merge_dashes": False,
        "invented_boundaries": False,
        "segment_counts": None,
        "column_catch_all": True,
        "feature_catch_all": True,
        "proximity_exponent": 1.0,
        "branch_order": "occurrence",
        "branch_tree": False,
        "own_strengths": "segments",
        "maximum_subwords": 160,
        "maximum_bytes": 2560,
        "column_names": "first",
    }
)
# What sequences of tokens and their columns depend on, so that an encoded corpus does.
TEXT_FIELDS = (
    *("profile", "tokens", "sentences_per_sequence", "crop", "merge_dashes", "invented_boundaries"),
    *("branch_order", "maximum_subwords", "maximum_bytes", "column_names"),
)


class FieldRules:
    """Rules of a model for the fields of its specifications.

    Attributes
    ----------
    defaults : mapping of str to Any
        Values of the fields that are `MODEL_DEFAULT` unless they are given.
    text_fields : tuple of str
        Fields that encoded text depends on, besides its limits, branches and flags.
    """

    defaults: Mapping[str, Any] = PLAIN
    text_fields: tuple[str, ...] = TEXT_FIELDS

    def defaults_for(self, specification: Specification) -> Mapping[str, Any]:
        """Return the defaults of a specification, which has the fields that were given."""
        return self.defaults

    def canonical_flags(self, specification: Specification) -> bool:
        """Return whether flags are canonical unless others are asked for."""
        return False

    def check(self, specification: Specification) -> dict[str, Any]:
        """Check a specification with all defaults filled in; return the fields in their one form.

        Raises
        ------
        SpecificationError
            If a field is out of range, means nothing in this model, or contradicts another.
        """
        raise NotImplementedError

    def stored(self, specification: Specification) -> dict[str, Any]:
        """Return the fields of a specification that are stored."""
        raise NotImplementedError


def require(valid: bool, name: str, value: object, expected: str, remedy: str | None = None, *others: str) -> None:
    """Raise a `SpecificationError` that names the field when it is not valid; others are in the text, too."""
    if not valid:
        names = (name, *others) if name.isidentifier() else others
        raise SpecificationError(f"{name} is {value!r}", expected, remedy or f"set {name} to such a value", names)


def require_values(specification: Specification, only: Mapping[str, Any], remedy: str) -> None:
    """Raise a `SpecificationError` unless fields have the only values that a profile has of them."""
    for name, value in only.items():
        found = getattr(specification, name)
        # Subwords are asked for by naming a tokenizer.
        others, more = (("tokenizer",), ", or leave tokenizer out") if name == "tokens" else ((), "")
        expected = f"{value!r}, its only value in profile {specification.profile}"
        require(found == value, name, found, expected, remedy + more, *others)


@dataclass(frozen=True, kw_only=True)
class ModelTraits:
    """Traits of a model: what it reads, and what it offers to user interfaces.

    Parameters
    ----------
    columns : bool
        Whether nouns are concept columns: text is tagged, its nouns are merged, and keys are made of the numbers of
        names. Otherwise tokens are the words as text has them, and keys are hashes of words.
    probabilities : bool
        Whether every word has a probability, so that words can be drawn and texts scored.
    order_free : bool
        Whether counts are the same for any order and division of text; a network of columns has to have canonical
        flags besides.
    """

    columns: bool = False
    probabilities: bool = True
    order_free: bool = True


@dataclass(frozen=True)
class _BuiltIn:
    """A model of this package, which is imported when a network of it is opened."""

    path: str
    fields: str
    traits: ModelTraits


_MODELS = "giaann_dask.models"
_COLUMNS = ModelTraits(columns=True, probabilities=False)
BUILT_IN = {
    "v1": _BuiltIn(f"{_MODELS}.columns.model:MODEL", f"{_MODELS}.columns.specification:V1", _COLUMNS),
    "v2": _BuiltIn(f"{_MODELS}.columns.model:MODEL", f"{_MODELS}.columns.specification:V2", _COLUMNS),
    "contexts": _BuiltIn(
        f"{_MODELS}.contexts.model:MODEL", f"{_MODELS}.contexts.specification:CONTEXTS", ModelTraits()
    ),
}
_OTHER_FIELDS, _WORD_FIELDS = f"{_MODELS}.words.specification:OtherFields", f"{_MODELS}.words.specification:WORDS"
# Profiles whose rules models of other packages can have.
BASES = tuple(name for name, model in BUILT_IN.items() if model.traits.columns)


@cache
def fields_of(profile: str, base: str = "") -> FieldRules:
    """Return the rules for the fields of a profile's specifications.

    Parameters
    ----------
    profile : str
        Name of the profile.
    base : str
        Profile of this package whose rules a model of another package has; empty for a model of words.

    Examples
    --------
    >>> fields_of("v2").defaults["sentences_per_sequence"]
    3
    """
    known = BUILT_IN.get(base or profile)
    rules = EntryPoint(profile, _WORD_FIELDS if known is None else known.fields, GROUP).load()
    if profile not in BUILT_IN:
        rules = EntryPoint(profile, _OTHER_FIELDS, GROUP).load()(rules)
    return cast("FieldRules", rules)


def traits_of(profile: str, package: str = "", base: str = "") -> ModelTraits:
    """Return the traits of a profile's model; those of this package are known without importing it.

    Examples
    --------
    >>> traits_of("v2").columns
    True
    """
    known = BUILT_IN.get(base or profile)
    return find_model(profile, package).traits if known is None else known.traits


def name_model(profile: str) -> None:
    """Let networks of this process have the model of an import path; other names need no permission.

    Parameters
    ----------
    profile : str
        As the user gave it, never as something stored has it.
    """
    if ":" in profile:
        _named.add(profile)


@contextmanager
def naming_anew() -> Iterator[None]:
    """Forget the import paths that the process named, and name them again afterwards: a command names its own."""
    before = {*_named}
    _named.clear()
    try:
        yield
    finally:
        _named.clear()
        _named.update(before)


def find_model(profile: str, package: str = "") -> Model:
    """Return the model of a profile.

    Parameters
    ----------
    profile : str
        Name of a model of this package, of an entry point, or ``module:attribute``.
    package : str
        Distribution that registers it, as far as known; named where it is not installed.

    Raises
    ------
    ModelNotNamedError
        If it is an import path that the user has not named.
    MissingDependencyError
        If its package is not installed.
    SpecificationError
        If there is none, or what is found is not a model.
    """
    known, worker = BUILT_IN.get(profile), worker_address()
    if known is None and ":" in profile and worker is None:
        _require_named(profile)
    try:
        return _find(profile if known is None else known.path, profile, package)
    except GiaannError as error:
        raise error if worker is None else error.at(f"worker {worker} on host {socket.gethostname()}") from error


def worker_address() -> str | None:
    """Return the address of the worker that runs this task; None outside of tasks and in a client's own process."""
    # Where tasks run, it has been imported.
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return None
    try:
        address = str(distributed.get_worker().address)
    except ValueError:
        return None
    return None if address.startswith("inproc://") else address


def _require_named(path: str) -> None:
    """Raise a `ModelNotNamedError` unless the user has named an import path."""
    if path in _named:
        return
    import dask

    if path not in dask.config.get(TRUSTED, ()):
        raise ModelNotNamedError(
            f"the model {path!r} is stored as an import path, and would run the module {module_of(path)}",
            "a path that you name, or a model of an installed package",
            f"if you trust this module, give profile {path}; in Python, gd.open(path, profile={path!r})",
            names=("profile",),
        )


@cache
def _find(path: str, profile: str, package: str) -> Model:
    found = _load(path, profile, package)
    # Imported by name, as models are above what finds them.
    if not isinstance(found, import_module("giaann_dask.models.base").Model):
        raise SpecificationError(
            f"the model {profile!r} is {type(found).__name__}",
            "an instance of giaann_dask.models.base.Model",
            "let the entry point or path name such an instance",
        )
    return cast("Model", found)


def clear_models() -> None:
    """Find models anew, as after the packages of a process have changed."""
    _find.cache_clear()


def package_of(profile: str) -> str:
    """Return the distribution that registers a model; empty for models of this package and import paths."""
    registered = None if profile in BUILT_IN else _registered(profile)
    return "" if registered is None or registered.dist is None else registered.dist.name


def module_of(path: str) -> str:
    """Return the topmost module of an import path ``module:attribute``.

    Examples
    --------
    >>> module_of("skip_bigrams.model:MODEL")
    'skip_bigrams'
    """
    return path.partition(":")[0].partition(".")[0]


def registered_profiles() -> tuple[str, ...]:
    """Return the names of all models that are installed, those of this package first."""
    found = {each.name for each in entry_points(group=GROUP) if _is_installed(each)}
    return (*BUILT_IN, *sorted(found - BUILT_IN.keys()))


def _registered(profile: str) -> EntryPoint | None:
    """Return the entry point of an installed distribution."""
    return next(filter(_is_installed, entry_points(group=GROUP, name=profile)), None)


def _is_installed(entry: EntryPoint) -> bool:
    """Return whether a distribution is where packages are installed, not in the folder of work or of the script."""
    if entry.dist is None:
        return False
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    folders = {Path.cwd(), *([] if script is None else [Path(script).resolve().parent])}
    return Path(str(entry.dist.locate_file(""))).resolve() not in folders


def _require_own_module(entry: EntryPoint) -> None:
    """Raise a `ModelNotNamedError` where a module of another place has the name of an installed distribution's."""
    name = module_of(entry.value)
    if entry.dist is None or name in sys.modules:
        return
    # Top-level modules are found without running anything.
    installed, found = _module_files(entry.dist, name), find_spec(name)
    if installed and found is not None and found.origin and Path(found.origin).resolve() not in installed:
        raise ModelNotNamedError(
            f"the module {found.origin} has the name of one of the package {entry.dist.name}",
            f"that of the model {entry.name!r}, {min(installed)}",
            "run the command in another folder, or rename the file",
        )


def _module_files(distribution: Distribution, name: str) -> set[Path]:
    """Return the file of a module that a distribution installed; none of one that is installed to be edited."""
    parts = ((f"{name}.py",), (name, "__init__.py"))
    return {Path(str(file.locate())).resolve() for file in distribution.files or () if file.parts in parts}


def _load(path: str, profile: str, package: str) -> Any:
    """Import what a path or an entry point names."""
    entry = EntryPoint(profile, path, GROUP) if ":" in path else _registered(profile)
    if entry is None:
        raise _missing(profile, package)
    matched = EntryPoint.pattern.match(entry.value)
    require(matched is not None and bool(matched["attr"]), "profile", entry.value, "a name, or module:attribute")
    _require_own_module(entry)
    try:
        module = import_module(entry.module)
    except ModuleNotFoundError as error:
        if module_of(error.name or "") != module_of(entry.value):
            raise MissingDependencyError.of(error) from error
        raise _missing(profile, package or package_of(profile) or module_of(entry.value)) from error
    except Exception as error:
        raise ModelError.of(f"the model {profile}", f"importing {entry.module}", error) from error
    try:
        return reduce(getattr, entry.attr.split("."), module)
    except AttributeError as error:
        names = ", ".join(name for name, value in vars(module).items() if name.isupper() and not name.startswith("_"))
        raise SpecificationError(
            f"the module {entry.module}, of the model {profile!r}, has no {entry.attr}",
            f"one of {names}" if names else "the name of a model in it",
            "name the model as the module does",
        ) from error


def _missing(profile: str, package: str) -> GiaannError:
    installed = ", ".join(registered_profiles())
    if package:
        return MissingDependencyError(
            f"a network of the model {profile!r}, which is not installed", installed, f"install the package {package}"
        )
    return SpecificationError(
        f"profile is {profile!r}",
        installed,
        "choose one of these, or install the package that has it",
        names=("profile",),
    )
