"""Do the jobs that recur: ``giaann-dask job nightly`` and ``giaann-dask job weekly``.

Each night new inputs are trained, the network is evaluated, and old commits are deleted. Each week a commit is
evaluated, a report is written, and accuracy is compared with that of earlier runs.

Options are in `job_options`; locks and histories are in `history`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Timer
from typing import Any

from distributed import Client

from giaann_dask.api.network import Network
from giaann_dask.api.training import new_inputs, train
from giaann_dask.diagnostics.evaluation_report import save_report
from giaann_dask.encoding.sources import UnseenInput
from giaann_dask.errors import InputFormatError, OptionError
from giaann_dask.events import Observer, ignore
from giaann_dask.models.results import EvaluationReport
from giaann_dask.storage import read_json_lines
from giaann_dask.store.corpus import is_corpus
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.text.inputs import Files, require_rereadable, resolve_inputs
from giaann_dask.text.read_options import ReadOptions
from giaann_dask.workflows.exits import DONE, CheckFailedError, TryAgainError
from giaann_dask.workflows.job_options import Measure, NightlyOptions, WeeklyOptions

_LOG = logging.getLogger(__name__)
WEEKLY = "weekly"


@dataclass(frozen=True)
class Plan:
    """Plan of a run.

    Attributes
    ----------
    train : tuple of UnseenInput
        Inputs with text that the network does not hold.
    known : int
        Inputs all of whose text it holds.
    unsettled : tuple of str
        Files that may still be being written.
    unreadable : tuple of UnseenInput
        Files that cannot be read.
    """

    train: tuple[UnseenInput, ...]
    known: int
    unsettled: tuple[str, ...]
    unreadable: tuple[UnseenInput, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return {
            "new_files": [news.name for news in self.train],
            "new_characters": sum(news.new_characters for news in self.train),
            "known_files": self.known,
            "unsettled_files": list(self.unsettled),
            "unreadable_files": [news.name for news in self.unreadable],
        }


def plan(options: NightlyOptions) -> Plan:
    """Return the inputs that a run would train now; reads all inputs and writes nothing.

    Raises
    ------
    InputFormatError
        If a file cannot be read, and such files are not to be left out.
    OptionError
        If the text to evaluate on is text that is trained.
    TryAgainError
        If there is nothing but files that may still be being written.
    """
    reading = options.text.reading
    found, unsettled = settled(options.inputs, options.settle_s, reading)
    held_out = [] if options.evaluation is None else settled(options.evaluation.inputs, 0.0, reading)[0]
    news = new_inputs(
        Files([*found, *held_out]), options.network, specification=options.specification, text=options.text
    )
    trained, evaluated = news[: len(found)], news[len(found) :]
    for each in evaluated:
        if each.new_characters < each.characters:
            raise OptionError(
                f"{each.name}, to evaluate on, is text that the network is trained on",
                "text held out from training",
                "name another file, or move it out of the training folder",
            )
    unreadable = tuple(each for each in trained if each.problem)
    if unreadable and not options.skip_unreadable:
        raise InputFormatError(unreadable[0].problem, "", "repair the file, or leave it out with skip_unreadable")
    if not found:
        raise TryAgainError(
            f"all {len(unsettled)} files were changed in the last {options.settle_s:g} seconds",
            "complete files",
            "run it again later, or with a smaller settle_s",
        )
    new = tuple(each for each in trained if each.new_characters)
    known = len(trained) - len(new) - len(unreadable)
    return Plan(new, known, tuple(unsettled), unreadable)


def settled(inputs: Sequence[str], settle_s: float, reading: ReadOptions) -> tuple[list[str], list[str]]:
    """Return the files, datasets and corpora of inputs, and the files that were changed recently."""
    require_rereadable(inputs, "a scheduled training")
    found: list[str] = []
    unsettled: list[str] = []
    for name in inputs:
        if is_corpus(name):
            found.append(str(name))
            continue
        for each in resolve_inputs([name], reading):
            young = isinstance(each, Path) and time.time() - each.stat().st_mtime < settle_s
            (unsettled if young else found).append(str(each))
    return list(dict.fromkeys(found)), list(dict.fromkeys(unsettled))


def train_nightly(
    options: NightlyOptions,
    entry: dict[str, Any],
    client: Client,
    observer: Observer,
    stop: Event,
) -> None:
    """Train, evaluate and delete old commits; the entry of the history is updated after each step.

    Raises
    ------
    CheckFailedError
        If accuracy is below the least one.
    GiaannError
        Whatever is wrong with inputs, cluster or store.
    """
    todo = plan(options)
    entry |= todo.as_dict()
    _LOG.info("%s new files, %s known ones", len(todo.train), todo.known)
    if todo.train:
        with _limited(options.max_seconds, stop) as limited:
            network = train(
                Files(each.name for each in todo.train),
                options.network,
                client=client,
                specification=options.specification,
                text=options.text,
                options=options.training,
                observer=observer,
                stop=limited,
            )
        counts = ("sequences", "trained", "tokens", "connections", "stopped")
        entry["training"] = {name: getattr(network.training_report, name) for name in counts}
    else:
        network = Network(options.network)
    entry["commit"] = network.commit
    if options.evaluation is not None:
        report, entry["evaluation"] = evaluate(network, options.evaluation, client, observer)
        if report.top1 < options.least_top1:
            raise CheckFailedError(
                f"top-1 of network {options.network} is {report.top1:.4f}",
                f"{options.least_top1:g} or more",
                "no commit was deleted; check what was trained since the last one that passed",
            )
    if options.keep_commits is not None:
        store = NetworkStore(options.network)
        with store.lock():
            entry["freed_bytes"] = store.collect(options.keep_commits)
        entry["commits"] = len(store.commits())


@contextmanager
def _limited(seconds: float | None, stop: Event) -> Any:
    """Yield an event that is set after some seconds, too."""
    if seconds is None:
        yield stop
        return
    timer = Timer(seconds, stop.set)
    timer.daemon = True
    timer.start()
    try:
        yield stop
    finally:
        timer.cancel()


def evaluate(
    network: Network, wanted: Measure, client: Client, observer: Observer = ignore
) -> tuple[EvaluationReport, dict[str, Any]]:
    """Evaluate a network of any profile on a text; return the report, and the fields to write to the history."""
    require_rereadable(wanted.inputs, "a recorded evaluation")
    report = network.evaluate(
        Files(wanted.inputs),
        client=client,
        max_sequences=wanted.max_sequences,
        text=wanted.text,
        progress=False,
        observer=observer,
    )
    values = report.as_dict()
    names = ("top1", "protocol", "prediction_tokens", "prediction_matches", "perplexity", "bits_per_byte")
    return report, {name: values[name] for name in names if name in values} | {"text": wanted.identity()}


def check_weekly(
    options: WeeklyOptions, entry: dict[str, Any], history: Path, client: Client, observer: Observer = ignore
) -> None:
    """Evaluate, write the report, and compare with the last run that passed on the same text.

    Raises
    ------
    CheckFailedError
        If accuracy fell by more than the tolerance. The report is written nevertheless.
    """
    network = Network(options.network, options.commit)
    report, figures = evaluate(network, options.evaluation, client, observer)
    entry |= {"commit": network.commit, "evaluation": figures}
    name = f"{entry['started'].replace(':', '').replace('+0000', 'Z')}-{network.commit[:8]}.html"
    entry["report"] = str(save_report(report, options.reports / name))
    before = last_passed(read_json_lines(history), WEEKLY, figures["text"])
    if before is None:
        return
    earlier = float(before["evaluation"]["top1"])
    entry["before"] = {"commit": before["commit"], "top1": earlier, "started": before["started"]}
    # Shares are quotients of counts, so equal ones may differ in the last bit.
    if earlier - report.top1 > options.tolerance + 1e-12 and not options.accept:
        raise CheckFailedError(
            f"top-1 of network {options.network} fell from {earlier:.4f} (commit {before['commit']}) to "
            f"{report.top1:.4f}",
            f"no more than {options.tolerance:g} less",
            f"see {entry['report']}; accept accepts it as the new reference",
            names=("accept",),
        )


def last_passed(history: Iterable[dict[str, Any]], job: str, identity: str) -> dict[str, Any] | None:
    """Return the last run of a job that passed on the same text, or None.

    Failed runs do not count: otherwise lower accuracy would be the reference for the next run.

    Examples
    --------
    >>> runs = [{"job": "a", "exit": 0, "evaluation": {"text": "t", "top1": 0.5}},
    ...         {"job": "a", "exit": 3, "evaluation": {"text": "t", "top1": 0.1}}]
    >>> last_passed(runs, "a", "t")["evaluation"]["top1"]
    0.5
    """
    passed = [
        run
        for run in history
        if run.get("job") == job and run.get("exit") == DONE and run.get("evaluation", {}).get("text") == identity
    ]
    return passed[-1] if passed else None
