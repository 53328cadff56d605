"""Score a text with a model of one's own on a cluster: stretches of its tokens as tasks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from giaann_dask.cluster import result, task_key
from giaann_dask.errors import OptionError, parameter
from giaann_dask.events import Observer, SequencesEvaluated
from giaann_dask.models.words.counted_predictor import counted_from_store
from giaann_dask.models.words.score_report import MOST_RANK, ScoreReport, ScoringOptions, read_text
from giaann_dask.models.words.scores import TextScores, join_scores
from giaann_dask.models.words.stream import NONE, TokenStream

if TYPE_CHECKING:
    from distributed import Client

    from giaann_dask.encoding.sources import SourceOptions
    from giaann_dask.store.commits import CommitReader
    from giaann_dask.text.memory_inputs import Source


def score_counted(
    client: Client,
    reader: CommitReader,
    inputs: Sequence[Source],
    sources: SourceOptions,
    options: ScoringOptions,
    observer: Observer,
) -> ScoreReport:
    """Score every token of a text; see `Model.score`.

    Raises
    ------
    OptionError
        If a baseline is asked for, which the counts of a model of one's own do not give.
    EmptyInputError
        If there is no token after the seed tokens of any sentence.
    """
    specification = reader.manifest().specification
    if options.baseline is not None:
        received = f"{parameter('baseline')} for a network of the model {specification.profile}"
        raise OptionError(received, "profile contexts, whose counts n-grams are made of", "leave it out")
    started = time.perf_counter()
    stream, sequences = read_text(client, inputs, sources, options, observer)
    tokens: int = result(client.submit(len, stream, key=task_key("len", stream.key)))
    place, futures = (str(reader.path), reader.commit), []
    for begin in range(0, tokens, options.tokens_per_task):
        span = begin, min(begin + options.tokens_per_task, tokens)
        futures.append(client.submit(score_span, *place, stream, span, key=task_key("score", place, stream.key, span)))
    parts: list[TextScores] = []
    for future in futures:
        part: TextScores = result(future)
        parts.append(part)
        observer(SequencesEvaluated(int((part.place == 0).sum()), int(part.matches.sum()), len(part.matches)))
    scores, seed = join_scores(parts), specification.seed_tokens
    every, predicted = scores.summary(), scores.summary(seed)
    top_k = {k: scores.top_k(k, seed) for k in sorted({1, *options.top_k})}
    seconds = time.perf_counter() - started
    return ScoreReport(sequences, seed, predicted, every, seconds, reader.commit, scores, None, top_k)


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
