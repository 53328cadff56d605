"""Choose the weights of profile ``contexts`` under which a validation text is most probable.

The defaults in `giaann_dask.models.contexts.scores` come from here. Both files are CoNLL-U; a document begins at each
``# newdoc``, or is a sentence where there is none::

    python benchmarks/choose_weights.py train.conllu dev.conllu --steps 40
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from giaann_dask.errors import EmptyInputError
from giaann_dask.keys import Integers
from giaann_dask.lazy import jit, jit_inner
from giaann_dask.models.contexts.kernel import (
    IS_NEAR,
    LEAST_SHARE,
    RECENT_KINDS,
    RECENT_PRIOR,
    SMALL,
    Evidence,
    Floats,
    Pooling,
    Text,
    exponentials,
    logarithms_of_more,
)
from giaann_dask.models.contexts.kinds import count_kinds
from giaann_dask.models.contexts.scores import NAMES, LogLinearModel, PoolingOptions
from giaann_dask.models.contexts.tables import build_tables
from giaann_dask.models.words.stream import TokenStream


def choose_weights(
    model: LogLinearModel, validation: TokenStream, *, steps: int = 40, rate: float = 0.06
) -> LogLinearModel:
    """Choose the weights under which a validation text is most probable.

    Parameters
    ----------
    model : LogLinearModel
        Tables that have not seen the validation text, and weights to begin with; those of 0 stay so.
    validation : TokenStream
        Text that is neither trained on nor reported on.
    steps : int
        Steps of ascent, each of which scores the whole text.
    rate : float
        Largest change of a weight in the first step; it falls to a tenth.

    Returns
    -------
    LogLinearModel
        The same tables with the best weights found, rounded to thousandths.
    """
    if not len(validation):
        raise EmptyInputError("the validation text is empty", "some sentences", "give a longer text")
    values = np.array((*model.options.weights, *model.options.recent_weights))
    used = values != 0
    text, evidence = model.with_evidence(validation, model.numbered(validation), 0, len(validation))
    mean, square, best = np.zeros(len(values)), np.zeros(len(values)), (-math.inf, values)
    for step in range(1, steps + 1):
        # A weight that crosses 0 is not taken for one that is left out.
        given = np.where(used & (np.abs(values) < 1e-3), 1e-3, values)
        value, slope = gradient(with_weights(model.options, given), text, evidence)
        best = max(best, (value, values.copy()), key=lambda pair: pair[0])
        mean, square = 0.8 * mean + 0.2 * slope * used, 0.95 * square + 0.05 * slope**2
        scale = np.sqrt(square / (1 - 0.95**step)) + 1e-9
        values = np.clip(values + rate * (1 - 0.9 * step / steps) * mean / (1 - 0.8**step) / scale, -10, 10)
    return replace(model, options=with_weights(model.options, best[1]))


def with_weights(options: PoolingOptions, values: Floats) -> PoolingOptions:
    """Return the same options with other weights, rounded to thousandths, as they are displayed."""
    rounded = tuple(np.round(values, 3).tolist())
    return replace(options, weights=rounded[: len(NAMES)], recent_weights=rounded[len(NAMES) :])


def gradient(options: PoolingOptions, text: Text, evidence: Evidence) -> tuple[float, Floats]:
    """Return the mean logarithm of the probability of a text's tokens, and how it changes with the weights."""
    change = np.zeros(len(NAMES) + RECENT_KINDS)
    logs = _add_gradient(text, evidence, options.pooling, change)
    return float(logs.mean()), change / len(text.words)


class WorkSpace(NamedTuple):
    """Work space of one word each, and counters: words visited, and words remembered.

    `near` and `score` are the sums of weighted evidence of the word before and of everything else.
    """

    stamp: Integers
    touched: Integers
    direct: Floats
    near: Floats
    score: Floats
    recent: Floats
    remembered: Integers
    values: Floats
    counters: Integers


@jit_inner
def work_space(words: int) -> WorkSpace:
    """Return the work space for a number of words."""
    numbers, floats = np.empty(words, np.int64), np.zeros(words)
    recent, values = np.zeros((RECENT_KINDS, words)), np.empty((3, words))
    stamp, counters = np.full(words, -1), np.zeros(2, np.int64)
    return WorkSpace(stamp, numbers, floats, floats.copy(), floats.copy(), recent, numbers.copy(), values, counters)


@jit_inner
def _add_word(word: int, now: int, state: WorkSpace) -> None:
    """Add a word to those that have evidence."""
    if state.stamp[word] != now:
        state.stamp[word] = now
        state.touched[state.counters[0]] = word
        state.counters[0] += 1
        state.direct[word] = state.near[word] = state.score[word] = 0.0


@jit_inner
def _gather(now: int, text: Text, table: Evidence, weights: Floats, state: WorkSpace) -> float:
    """Collect the evidence of all contexts; return the probability left to words without evidence."""
    rows, left = text.rows, 1.0
    for kind in range(table.chain - 1, -1, -1):
        row = rows[now, kind]
        if row >= 0:
            for entry in range(table.pointer[row], table.pointer[row + 1]):
                _add_word(table.word[entry], now, state)
                state.direct[table.word[entry]] += left * table.discounted[entry]
            left *= table.freed[row]
    for kind in range(rows.shape[1]):
        row, weight = rows[now, kind], weights[kind]
        score = state.near if IS_NEAR[kind] else state.score
        if row >= 0 and weight != 0.0:
            for entry in range(table.pointer[row], table.pointer[row + 1]):
                _add_word(table.word[entry], now, state)
                score[table.word[entry]] += weight * table.evidence[entry]
    return left


@jit_inner
def _remember(now: int, text: Text, pooling: Pooling, state: WorkSpace) -> None:
    """Collect the evidence of the tokens read before in this document."""
    words, document, recent = text.words, text.document, state.recent
    for at in range(max(now - len(pooling.fading) + 1, 0), now):
        if document[at] != document[now]:
            continue
        word = words[at]
        if recent[0, word] == 0.0:
            _add_word(word, now, state)
            state.remembered[state.counters[1]] = word
            state.counters[1] += 1
        recent[0, word] += pooling.fading[now - at]
        if at > 0 and document[at - 1] == document[now] and words[at - 1] == words[now - 1]:
            recent[1, word] += 1.0
            if at > 1 and document[at - 2] == document[now] and words[at - 2] == words[now - 2]:
                recent[2, word] += 1.0
    count = state.counters[1]
    for kind in range(RECENT_KINDS):
        for place in range(count):
            word = state.remembered[place]
            state.values[0, place] = recent[kind, word] / (RECENT_PRIOR * max(text.share[word], LEAST_SHARE))
        logarithms_of_more(state.values[0], count, state.values[1], state.values[2])
        for place in range(count):
            word = state.remembered[place]
            recent[kind, word] = state.values[1, place]
            state.score[word] += pooling.weights[text.rows.shape[1] + kind] * state.values[1, place]


@jit_inner
def _normalise(left: float, text: Text, state: WorkSpace) -> float:
    """Make unnormalised probabilities of the scores; return their sum over all words."""
    base, direct = text.base, state.direct
    total, rest = 0.0, 1.0
    for place in range(state.counters[0]):
        word = state.touched[place]
        state.values[0, place] = state.score[word] + state.near[word]
    exponentials(state.values[0], state.counters[0], state.values[1], state.values[2])
    for place in range(state.counters[0]):
        word = state.touched[place]
        rest -= base[word]
        direct[word] = (direct[word] + left * base[word]) * state.values[1, place]
        total += direct[word]
    return total + left * max(rest, 0.0)


@jit_inner
def add_evidence(now: int, text: Text, table: Evidence, pooling: Pooling, state: WorkSpace) -> tuple[float, float]:
    """Compute the distribution before one token; return the mass without evidence and the total."""
    state.counters[:] = 0
    left = _gather(now, text, table, pooling.weights, state)
    _remember(now, text, pooling, state)
    return left, _normalise(left, text, state)


@jit
def distribution(text: Text, table: Evidence, pooling: Pooling, now: int) -> tuple[Floats, float]:
    """Return the probability of every word of the table at one token, and that of all other words together."""
    state = work_space(len(text.base))
    left, total = add_evidence(now, text, table, pooling, state)
    chance = left * text.base
    for place in range(state.counters[0]):
        chance[state.touched[place]] = state.direct[state.touched[place]]
    return chance / total, left * max(1.0 - text.base.sum(), 0.0) / total


@jit_inner
def _change(
    now: int, text: Text, table: Evidence, weights: Floats, total: float, state: WorkSpace, gradient: Floats
) -> None:
    """Add how the logarithm of the token's probability changes with each weight."""
    target, kinds = text.words[now], text.rows.shape[1]
    for kind in range(kinds):
        row, change = text.rows[now, kind], 0.0
        if row >= 0 and weights[kind] != 0.0:
            for entry in range(table.pointer[row], table.pointer[row + 1]):
                word = table.word[entry]
                change += ((word == target) - state.direct[word] / total) * table.evidence[entry]
            gradient[kind] += change
    for place in range(state.counters[1]):
        word = state.remembered[place]
        for kind in range(RECENT_KINDS):
            gain = (word == target) - state.direct[word] / total
            gradient[kinds + kind] += gain * state.recent[kind, word]


@jit_inner
def _logarithm(now: int, left: float, text: Text, state: WorkSpace) -> float:
    """Return the logarithm of the token's unnormalised probability, finite however small that is."""
    target = text.words[now]
    spoken_for = state.stamp[target] == now
    if spoken_for and state.direct[target] > SMALL:
        value = math.log(state.direct[target])
    else:
        value = (
            math.log(left) + text.log_base[target] + (state.score[target] + state.near[target] if spoken_for else 0.0)
        )
    return value


@jit
def _add_gradient(text: Text, table: Evidence, pooling: Pooling, gradient: Floats) -> Floats:
    """Return the logarithm of each token's probability, and add the gradient of their sum for kinds with a weight."""
    state = work_space(len(text.base))
    logs = np.empty(len(text.words))
    for now in range(len(logs)):
        left, total = add_evidence(now, text, table, pooling, state)
        logs[now] = _logarithm(now, left, text, state) - math.log(total)
        _change(now, text, table, pooling.weights, total, state, gradient)
        for place in range(state.counters[1]):
            state.recent[:, state.remembered[place]] = 0.0
    return logs


def documents_of(path: Path) -> list[list[list[str]]]:
    """Return the words of the sentences of the documents of a CoNLL-U file."""
    text = path.read_text(encoding="utf-8")
    if "\n# newdoc" not in f"\n{text}":
        return [[sentence] for sentence in _sentences(text)]
    return [list(_sentences(part)) for part in f"\n{text}".split("\n# newdoc")[1:]]


def _sentences(text: str) -> Iterator[list[str]]:
    for block in text.split("\n\n"):
        rows = [line.split("\t") for line in block.splitlines()]
        if words := [row[1] for row in rows if len(row) > 1 and row[0].isdigit()]:
            yield words


def main() -> None:
    """Print the weights of each kind of context, and the perplexity before and after."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=Path)
    parser.add_argument("validation", type=Path)
    parser.add_argument("--steps", type=int, default=40)
    given = parser.parse_args()
    trained = TokenStream.from_documents(documents_of(given.train))
    begun = with_weights(PoolingOptions(), np.full(len(NAMES) + 3, 0.05))
    model = LogLinearModel(build_tables([count_kinds(trained)], trained.words), begun)
    validation = TokenStream.from_documents(documents_of(given.validation))
    chosen = choose_weights(model, validation, steps=given.steps)
    weights = (*chosen.options.weights, *chosen.options.recent_weights)
    for name, weight in zip((*NAMES, *(f"recent {n}" for n in range(len(weights) - len(NAMES)))), weights, strict=True):
        print(f"{name:12} {weight:7.3f}")
    before, after = (math.exp(-each.score(validation).log_probability.mean()) for each in (model, chosen))
    print(f"perplexity of the validation text {before:.2f} with equal weights, {after:.2f} with these")


if __name__ == "__main__":
    main()
