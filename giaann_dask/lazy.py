"""Import and compile lazily: public names, optional dependencies, and functions that numba compiles.

Provides the ``__getattr__`` and ``__dir__`` of a package whose names are imported on first use, so that importing it
is fast, modules that are imported on first use, imports of packages that may not be installed, with an error that
says how to install them, and functions that are compiled when they are first called.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing import parent_process
from pathlib import Path
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

from giaann_dask.errors import MissingDependencyError
from giaann_dask.library_internals import add_cache_stamp, compile_events, load_numba_registries
from giaann_dask.local_files import code_cache

P = ParamSpec("P")
R = TypeVar("R")
# How long all functions of a profile take, as the notice, the command and the pages say it.
COMPILING_TIME = "up to two minutes of processor time, once"
# Said once where functions are compiled; seconds for which no other process says it, and the file that tells them.
NOTICE = f"giaann-dask: compiling for this installation: {COMPILING_TIME} (giaann-dask compile)\n"
_LATELY_S, MARK = 3600, "giaann-compiling"
_BAR_WIDTH = 30
# What pytest and `inspect.unwrap` ask of everything that a module holds; no module has it.
_ASKED_OF_ALL = ("__wrapped__", "_mock_name")
# What is done without compiled code while numba is not imported, which takes about twice as long: in one call, in all
# calls, and so far.
_MOST_OF_CALL_US, _MOST_US, _plain_us = 40_000, 300_000, 0
# What loads each function of `compiled`, and whether it has been called.
_COMPILED: dict[Callable[[], None], bool] = {}
# Seconds that this process took to compile each function.
COMPILE_TIMES: list[float] = []


def lazy_exports(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` of a package.

    Parameters
    ----------
    package : str
        Its full name.
    homes : mapping of str to str
        The module that each public name comes from.

    Returns
    -------
    tuple of callable
        The first loads a name and keeps it in the package; the second lists all names that are public, loaded
        or not, so that a notebook completes them.
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*homes, *(name for name in vars(sys.modules[package]) if name.startswith("__"))})

    return load, names


class LazyModule(ModuleType):
    """Module that is imported when one of its names is first used.

    Parameters
    ----------
    name : str
        Full name of the module.
    extra : str, optional
        Extra of giaann-dask that installs it; see `import_optional`.

    Examples
    --------
    >>> LazyModule("json").loads("[1]")
    [1]
    """

    def __init__(self, name: str, extra: str | None = None) -> None:
        super().__init__(name)
        self._extra = extra

    def __getattr__(self, name: str) -> Any:
        """Import the module, and keep the name here, so that it is found at once from then on."""
        if name in _ASKED_OF_ALL:
            raise AttributeError(name)
        module = import_optional(self.__name__, self._extra) if self._extra else import_module(self.__name__)
        value = getattr(module, name)
        setattr(self, name, value)
        return value


def import_optional(module: str, extra: str) -> ModuleType:
    """Import a module of an optional package.

    Parameters
    ----------
    module : str
        Full name of the module.
    extra : str
        Name of the extra of giaann-dask that installs it.

    Returns
    -------
    ModuleType
        The module.

    Raises
    ------
    MissingDependencyError
        If it cannot be imported.

    Examples
    --------
    >>> import_optional("json", "hub").__name__
    'json'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependencyError(
            f"the package {module.partition('.')[0]!r} cannot be imported ({error})",
            "",
            f"install it with: pip install 'giaann-dask[{extra}]'",
        ) from error


def require_optional(package: str, extra: str) -> None:
    """Check that an optional package is installed, without importing it; see `import_optional`."""
    if importlib.util.find_spec(package) is None:
        import_optional(package, extra)


@contextmanager
def _compile_notice(done: int, total: int) -> Iterator[None]:
    """Say on standard error that a function is compiled in the block, not where its code is read from the cache.

    That is one line, and on a terminal a progress bar below it, which goes when the function is compiled.

    Parameters
    ----------
    done, total : int
        Functions that are ready, and those of all modules that are imported.
    """
    event: Any = compile_events()

    class Compiling(event.Listener):  # type: ignore[misc]
        def on_start(self, event: object) -> None:
            self._began = time.monotonic()
            if sys.stderr is not None:
                _say_once()
                bar = f"{'#' * (_BAR_WIDTH * done // total):-<{_BAR_WIDTH}}"
                self._draw(f"compiling {bar} {functions_left(done, total, sum(COMPILE_TIMES), len(COMPILE_TIMES))}")

        def on_end(self, event: object) -> None:
            COMPILE_TIMES.append(time.monotonic() - self._began)
            self._draw("")

        def _draw(self, bar: str) -> None:
            # Not where a command draws bars, which replace the stream, and not from several processes into one line.
            is_own = sys.stderr is sys.__stderr__ and parent_process() is None
            if is_own and _on_terminal():
                sys.stderr.write(f"\r\033[K{bar}")
                sys.stderr.flush()

    with event.install_listener("numba:compile", Compiling()):
        yield


def functions_left(done: int, total: int, seconds: float, compiled: int) -> str:
    """Return how many functions are left to compile at most, and how long that takes by what others took.

    Parameters
    ----------
    done, total : int
        Functions that are ready, and all that may be needed.
    seconds : float
        What it took to compile functions so far.
    compiled : int
        How many these were.

    Examples
    --------
    >>> functions_left(0, 8, 0.0, 0), functions_left(6, 8, 12.0, 4)
    ('at most 8 functions left', 'at most 2 functions left, about 6 s')
    """
    left = max(total - done, 0)
    estimate = f", about {seconds / compiled * left:.0f} s" if compiled else ""
    return f"at most {left} function{'s' if left != 1 else ''} left{estimate}"


@functools.cache
def count_compilable() -> int:
    """Return how many functions of the package have compiled code of their own, imported or not."""
    sources = Path(__file__).parent.rglob("*.py")
    marks = ("\n@compiled(", "\n@jit\n")
    return sum(text.count(mark) for text in map(_source, sources) for mark in marks)


def _source(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def count_compiled() -> int:
    """Return how many functions have compiled code in the cache."""
    folder = code_cache()
    # Numba writes an index for each function, beside each module of the package or into one folder.
    place = folder.parent if folder.name == "__pycache__" else folder
    return sum(1 for _ in place.rglob("*.nbi"))


def announce_compiling() -> None:
    """Say that the workers which this process starts will compile, where no compiled code is cached yet."""
    if sys.stderr is not None and not count_compiled():
        _say_once()
        # Not in the workers' logs, too.
        with suppress(OSError):
            (code_cache() / f"{MARK}.worker").touch()


def _say_once() -> None:
    if is_first_to_compile():
        assert sys.stderr is not None
        sys.stderr.write(NOTICE)


def _on_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def is_first_to_compile() -> bool:
    """Return whether no process has compiled into this cache lately: workers compile at the same time.

    Where the stream is no terminal, workers have logs of their own, so that the user's process says it, too.
    """
    own = "" if _on_terminal() else ".process" if parent_process() is None else ".worker"
    mark = code_cache() / f"{MARK}{own}"
    try:
        if mark.exists() and time.time() - mark.stat().st_mtime < _LATELY_S:
            return False
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    except OSError:
        # A cache that cannot be written is empty at the next function, too.
        return False
    return True


def load_compiled(*, last_first: bool = False) -> None:
    """Compile all functions of `compiled` in modules that are imported, or load their code where it is cached.

    Parameters
    ----------
    last_first : bool
        Whether the functions that were imported last come first.
    """
    for load in list(_COMPILED)[:: -1 if last_first else 1]:
        load()


class NumbaTypes:
    """Expression of numba's types, as `numba_types.int64[::1]`, which imports numba when it is evaluated.

    Numba takes longer to import than a command needs that calls none of its functions.

    Parameters
    ----------
    evaluate : callable
        Returns what the expression stands for.

    Examples
    --------
    >>> value_of(numba_types.types.UniTuple(numba_types.int64, 2))
    UniTuple(int64, 2)
    """

    def __init__(self, evaluate: Callable[[], Any]) -> None:
        self._evaluate = evaluate

    def __getattr__(self, name: str) -> NumbaTypes:
        """Return the expression of an attribute."""
        if name.startswith("__"):
            raise AttributeError(name)
        return NumbaTypes(lambda: getattr(self._evaluate(), name))

    def __getitem__(self, index: Any) -> NumbaTypes:
        """Return the expression of a type of arrays."""
        return NumbaTypes(lambda: self._evaluate()[index])

    def __call__(self, *arguments: Any, **named: Any) -> NumbaTypes:
        """Return the expression of a call."""
        return NumbaTypes(lambda: self._evaluate()(*map(value_of, arguments), **named))


def value_of(expression: Any) -> Any:
    """Return what an expression of `numba_types` stands for, also within tuples; other values as they are."""
    if isinstance(expression, tuple | list):
        return tuple(map(value_of, expression))
    return expression._evaluate() if isinstance(expression, NumbaTypes) else expression


numba_types: Any = NumbaTypes(lambda: import_module("numba"))
"""What stands for the module numba where types are written before it is imported."""


class LazyFunction:
    """Function that numba compiles when it is first called, or when a compiled function calls it.

    Parameters
    ----------
    function : callable
        The function.
    inner : bool
        Whether only compiled functions call it, whose cached code has it: called otherwise, it runs as Python.
    """

    def __init__(self, function: Callable[..., Any], inner: bool) -> None:
        functools.update_wrapper(self, function)
        self.plain, self._inner = function, inner

    @functools.cached_property
    def dispatcher(self) -> Any:
        """Function as numba has it."""
        import numba

        # Division follows NumPy, in all functions: numba compiles what it provides itself once for each model of
        # errors. Entry points for C, which nobody calls, took two of 150 seconds.
        made = numba.njit(
            cache=not self._inner,
            nogil=True,
            error_model="numpy",
            no_cpython_wrapper=self._inner,
            no_cfunc_wrapper=True,
        )(self.plain)
        if not self._inner:
            add_cache_stamp(made, repr(sorted(_compiled_in(self.plain))))
        return made

    @property
    def _numba_type_(self) -> Any:
        # Numba asks so for the type of a name that a compiled function calls.
        return self.dispatcher._numba_type_

    def __call__(self, *arguments: Any) -> Any:
        """Call the function."""
        return self.plain(*arguments) if self._inner else self.dispatcher(*arguments)


def _compiled_in(function: Callable[..., Any]) -> set[tuple[str, ...]]:
    """Return what the compiled code of a function holds of other modules, which numba's cache does not track.

    These are the files of the functions that it calls, and the numbers that all of them name
    (`findings/numba_cache_of_a_caller.sh`).
    """
    found: set[tuple[str, ...]] = set()
    pending, seen = [function], {function}
    while pending:
        caller = pending.pop()
        for name in caller.__code__.co_names:
            value = caller.__globals__.get(name)
            if isinstance(value, int | float | tuple):
                found.add((name, repr(value)))
            elif isinstance(value, LazyFunction) and value.plain not in seen:
                seen.add(value.plain)
                pending.append(value.plain)
                # A module in an archive has no file of its own.
                with suppress(OSError):
                    file = os.stat(value.plain.__code__.co_filename)
                    found.add((name, str(file.st_mtime), str(file.st_size)))
    return found


def jit(function: Callable[..., Any]) -> Any:
    """Compile a function with numba for the types of its first call; compiled code is cached on disk."""
    return LazyFunction(function, inner=False)


def jit_inner(function: Callable[..., Any]) -> Any:
    """Compile a function that only compiled functions call; their cached code has it."""
    return LazyFunction(function, inner=True)


def runs_plainly(microseconds: int) -> bool:
    """Return whether something is done without compiled code, as numba is not imported, which takes longer.

    What was done so before counts, too: a process that does more and more imports numba in the end.

    Parameters
    ----------
    microseconds : int
        About how long it takes without compiled code.
    """
    global _plain_us
    if "numba" in sys.modules or microseconds > _MOST_OF_CALL_US:
        return False
    _plain_us += microseconds
    return _plain_us <= _MOST_US


def compiled(
    *signatures: Any, plain_us: Callable[..., int] | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Compile a function with numba for these types when it is first called; compiled code is cached on disk.

    With types as an argument of ``numba.njit`` it would be compiled where its module is imported: a scheduler, which
    imports the modules of tasks and calls none of their functions, answered nobody in the meantime.

    Parameters
    ----------
    *signatures
        Of numba, as `numba_types` has it: types of the result and of the arguments. Other types are an error when it
        is called.
    plain_us : callable, optional
        Given the arguments, returns about how many microseconds the function takes as Python, if it does the same so.
        Little is done so as long as numba is not imported (`runs_plainly`).
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:

        lock, ready = threading.Lock(), False
        lazy: LazyFunction = jit(function)

        def load() -> None:
            nonlocal ready
            with lock:
                # Another thread may have compiled it in the meantime.
                if not ready:
                    load_numba_registries()
                    with _compile_notice(sum(_COMPILED.values()), len(_COMPILED)):
                        for signature in signatures:
                            lazy.dispatcher.compile(value_of(signature))
                    lazy.dispatcher.disable_compile()
                    ready = True
                    _COMPILED[load] = True

        @functools.wraps(function)
        def call(*arguments: P.args, **named: P.kwargs) -> R:
            if not ready:
                if plain_us is not None and runs_plainly(plain_us(*arguments, **named)):
                    return _run_plainly(function, *arguments, **named)
                load()
            result: R = lazy.dispatcher(*arguments, **named)
            return result

        _COMPILED[load] = False
        return call

    return decorate


def _run_plainly(function: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
    import numpy as np

    # Unsigned numbers go round, as in compiled code.
    with np.errstate(over="ignore"):
        return function(*arguments, **named)
