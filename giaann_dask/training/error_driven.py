"""Train only connections to tokens that the network does not predict yet (error-driven training).

A training by misses is one of several steps. Each predicts its text with teacher forcing by the commit of the step
before, whose model marks the tokens that were not predicted (`giaann_dask.models.base.ErrorMask`).

Which tokens a network misses depends on what it has learnt before, hence on the order of the text.
Here that order is one of steps: all sequences of a step are predicted by the commit before it, which
does not change meanwhile. So within a step training stays a sum, the same for any division among
batches and workers; a step is committed as a whole, so that an interrupted step is repeated
from its beginning; and its increments can be added to any other network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from threading import Event

from distributed import Client

from giaann_dask.encoding.sources import SourceOptions, read_units
from giaann_dask.errors import EmptyInputError, OptionError
from giaann_dask.events import Observer
from giaann_dask.models import model_of
from giaann_dask.text.inputs import require_rereadable
from giaann_dask.text.ledger import Ledger
from giaann_dask.text.memory_inputs import Source
from giaann_dask.training.target import NetworkTarget
from giaann_dask.training.trainer import Trainer
from giaann_dask.training.training_options import TrainingOptions
from giaann_dask.training.training_report import TrainingReport, join_reports


def train_on_misses(
    client: Client,
    target: NetworkTarget,
    options: TrainingOptions,
    inputs: Sequence[Source],
    sources: SourceOptions,
    observer: Observer,
    stop: Event,
) -> TrainingReport:
    """Train a network in steps on the tokens that each step's predecessor misses; see `Trainer.train`.

    Raises
    ------
    OptionError
        If the network's model marks no tokens, or inputs can be read only once.
    """
    profile = target.specification.profile
    mask = model_of(target.specification).error_mask
    if mask is None:
        raise OptionError(
            f"train_on misses with a network of profile {profile}",
            "a model that marks the tokens it misses, such as v2",
            "leave train_on out",
        )
    require_rereadable(inputs, "training on misses")
    most, every = options.max_sequences, options.refresh_sequences
    counted = _known_sequences(target, inputs, sources)
    reports: list[TrainingReport] = []
    while True:
        limit = (counted // every + 1) * every
        limit = limit if most is None else min(limit, most)
        # Only whole steps are committed: the next commit would predict the rest of a partial one.
        plan = replace(options, max_sequences=limit, commit_sequences=None, commit_seconds=math.inf)
        marked = None if target.reader is None else mask(client, target.reader)
        trainer = Trainer(client, target, plan, observer, mask=marked)
        # An input without trainable sequences is only known after all steps.
        begun = any(report.trained for report in reports)
        try:
            reports.append(trainer.train(inputs, sources, check=not begun))
        except EmptyInputError:
            if trainer.counted < limit or limit == most:
                raise
        ended = trainer.counted < limit or limit == most
        counted = trainer.counted
        if ended or stop.is_set():
            return replace(join_reports(reports), stopped=not ended)


def _known_sequences(target: NetworkTarget, inputs: Sequence[Source], sources: SourceOptions) -> int:
    """Return on how many sequences at the beginning of the inputs the network has been trained."""
    if target.reader is None:
        return 0
    counted, ledger, passed = 0, Ledger(target.reader.ledger()), set[bytes]()
    for unit in read_units(inputs, sources):
        if unit.identity in passed:
            continue
        passed.add(unit.identity)
        entry = ledger.find(unit.identity)
        counted += entry.sequences
        if not entry.complete:
            break
    return counted
