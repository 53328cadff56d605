"""Choose what continues prompts by a network's profile: the one place that maps profiles to implementations.

Does not cover: rules of inference and sessions of the profiles with columns (`giaann_dask.inference.profiles`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from giaann_dask.events import Observer, ignore
from giaann_dask.inference.best.handle import TablesHandle, generate_words, words_on_workers
from giaann_dask.inference.continuation import Continuation, GenerationOptions
from giaann_dask.inference.generation import generate_text
from giaann_dask.inference.sessions import NetworkHandle, columns_on_workers
from giaann_dask.inference.token_events import OpenNetwork, WorkerOpening
from giaann_dask.store.commits import CommitReader

if TYPE_CHECKING:
    from distributed import Client


@dataclass(frozen=True)
class _Implementation:
    """Functions of a profile: open a network for many prompts, here or on workers, and continue one as a task."""

    open: Callable[[CommitReader, Client | None, GenerationOptions, Observer], OpenNetwork]
    on_workers: Callable[[Client, CommitReader, GenerationOptions], WorkerOpening]
    generate: Callable[[Client | None, CommitReader, str, GenerationOptions], Continuation]


def _open_columns(
    reader: CommitReader, client: Client | None, options: GenerationOptions, observer: Observer
) -> OpenNetwork:
    return NetworkHandle(reader, client=client, rows=options.rows, strengths=options.reasons > 0, observer=observer)


def _open_words(
    reader: CommitReader, client: Client | None, options: GenerationOptions, observer: Observer
) -> OpenNetwork:
    return TablesHandle(reader, client=client, observer=observer)


_COLUMNS = _Implementation(_open_columns, columns_on_workers, generate_text)
_WORDS = _Implementation(_open_words, words_on_workers, generate_words)
_PROFILES = {"v1": _COLUMNS, "v2": _COLUMNS, "best": _WORDS}


def open_network(
    reader: CommitReader, *, client: Client | None = None, options: GenerationOptions, observer: Observer = ignore
) -> OpenNetwork:
    """Open a commit of any profile in this process.

    Parameters
    ----------
    reader : CommitReader
        The commit.
    client : Client, optional
        Of the cluster that holds its regions or builds its tables; without one this process does.
    options : GenerationOptions
        How rows are fetched from the cluster, and whether reasons are reported.
    observer : callable, optional
        Called when prompts enter, advance or leave.
    """
    return _PROFILES[reader.manifest().specification.profile].open(reader, client, options, observer)


def open_on_workers(client: Client, reader: CommitReader, options: GenerationOptions) -> WorkerOpening:
    """Return how tasks open a commit of any profile on workers of a cluster.

    Raises
    ------
    ClusterError
        If the cluster does not respond in time.
    OptionError
        If the options do not fit the network.
    """
    return _PROFILES[reader.manifest().specification.profile].on_workers(client, reader, options)


def generate(client: Client | None, reader: CommitReader, prompt: str, options: GenerationOptions) -> Continuation:
    """Continue a prompt as a task of a cluster, or without a client here, with a network of any profile.

    Raises
    ------
    PromptError
        If the prompt cannot be continued.
    OptionError
        If the options do not fit the network.
    """
    return _PROFILES[reader.manifest().specification.profile].generate(client, reader, prompt, options)
