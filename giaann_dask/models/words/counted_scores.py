"""Score a text with a model of one's own on a cluster: stretches of its tokens as tasks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from giaann_dask.cluster import task_key
from giaann_dask.errors import OptionError
from giaann_dask.models.base import EvaluatedText
from giaann_dask.models.words.counted_predictor import counted_from_store
from giaann_dask.models.words.score_report import (
    ScoreReport,
    ScoringOptions,
    read_text,
    score_spans,
    tokens_of,
)
from giaann_dask.models.words.scores import MOST_RANK, TextScores
from giaann_dask.models.words.stream import NONE, TokenStream

if TYPE_CHECKING:
    from distributed import Future


def score_counted(text: EvaluatedText, options: ScoringOptions) -> ScoreReport:
    """Score every token of a text; see `Model.score`.

    Raises
    ------
    OptionError
        If a baseline is asked for, which the counts of a model of one's own do not give.
    EmptyInputError
        If there is no token after the seed tokens of any sentence.
    """
    client, reader = text.client, text.reader
    specification = reader.manifest().specification
    if options.baseline is not None:
        received = f"baseline for a network of the model {specification.profile}"
        expected = "profile contexts, whose counts n-grams are made of"
        raise OptionError(received, expected, "leave it out", names=("baseline",))
    started = time.perf_counter()
    stream, sequences = read_text(text, options)
    place = str(reader.path), reader.commit

    def submit(span: tuple[int, int]) -> Future:
        return client.submit(score_span, *place, stream, span, key=task_key("score", place, stream.key, span))

    scores = score_spans(submit, tokens_of(client, stream), options.tokens_per_task, text.observer)
    return ScoreReport.of(scores, text, options, sequences, time.perf_counter() - started)


def score_span(path: str, commit: str, stream: TokenStream, span: tuple[int, int]) -> TextScores:
    """Score the tokens of a stretch of a text, given the words before them in their sentence (a task)."""
    opened = counted_from_store(path, commit)
    begin, end = span
    logs, ranks, known = np.zeros(end - begin), np.zeros(end - begin, np.int64), np.zeros(end - begin, np.bool_)
    for at in range(begin, end):
        sentence = [stream.words[word] for word in stream.index[at - int(stream.place[at]) : at].tolist()]
        chance = opened.chance(opened.seen(sentence))
        logs[at - begin], number = opened.log_probability(chance, stream.words[stream.index[at]])
        known[at - begin] = number != NONE
        # Of equals the first one is more probable.
        above = (chance > chance[number]).sum() + (chance[:number] == chance[number]).sum()
        ranks[at - begin] = MOST_RANK if number == NONE else min(int(above), MOST_RANK)
    words = stream.index[begin:end]
    lengths = np.array([len(word.encode("utf-8", "surrogatepass")) + 1 for word in stream.words], np.int64)
    return TextScores(logs, ranks == 0, lengths[words], stream.place[begin:end], known, ranks)
