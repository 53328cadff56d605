"""Choose the weights of profile ``contexts`` under which validation texts are most probable.

The defaults in `giaann_dask.models.contexts.scores` come from here: each pair of files is a text that is counted and
another one of its kind. The mean over the pairs of the logarithm of the probability of a token is maximised (L-BFGS).
Files are CoNLL-U, where a document begins at each ``# newdoc`` or is a sentence where there is none, or plain text, of
which each file is a document::

    python benchmarks/choose_weights.py train.conllu dev.conllu manuals.txt other-manual.txt --tokens 4000
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize  # type: ignore[import-untyped]

from giaann_dask.errors import EmptyInputError
from giaann_dask.keys import Integers
from giaann_dask.lazy import jit, jit_inner
from giaann_dask.models.contexts.kernel import (
    IS_NEAR,
    LEAST_SHARE,
    NEAR_KINDS,
    RECENT_KINDS,
    RECENT_PRIOR,
    SMALL,
    Evidence,
    Floats,
    Pooling,
    Text,
    exponentials,
    logarithms_of_more,
    weights_before,
)
from giaann_dask.models.contexts.kinds import CHAIN, count_kinds
from giaann_dask.models.contexts.scores import BEST, NAMES, LogLinearModel, PoolingOptions
from giaann_dask.models.contexts.specification import CONTEXT_NAMES
from giaann_dask.models.contexts.tables import build_tables
from giaann_dask.models.words.predictor import sentences_of
from giaann_dask.models.words.stream import TokenStream
from giaann_dask.spec import Specification


def choose_weights(
    texts: Sequence[tuple[LogLinearModel, TokenStream]], *, lengths: int = CHAIN, steps: int = 25
) -> PoolingOptions:
    """Choose the weights under which validation texts are most probable.

    Parameters
    ----------
    texts : sequence of (LogLinearModel, TokenStream)
        For each kind of text tables that have not seen the validation text, which is neither trained on nor reported
        on. All models have the weights to begin with; those of 0 stay so.
    lengths : int
        Rows of `Pooling.weights`.
    steps : int
        Steps of ascent, each of which scores the whole text once or twice.

    Returns
    -------
    PoolingOptions
        The best weights found, rounded to thousandths.
    """
    if not texts or not all(len(stream) for _, stream in texts):
        raise EmptyInputError("a validation text is empty", "some sentences", "give a longer text")
    options = texts[0][0].options
    begun = np.tile(options.pooling.weights[:1], (lengths, 1))
    used, near = begun != 0, np.isin(np.arange(begun.shape[1]), NEAR_KINDS)
    free = used & (~near | (np.arange(lengths) == 0)[:, None])
    parts = [model.with_evidence(stream, model.numbered(stream), 0, len(stream)) for model, stream in texts]

    def weights_of(values: Floats) -> Floats:
        weights = np.zeros_like(begun)
        # A weight that crosses 0 is not taken for one that is left out.
        weights[free] = np.where(np.abs(values) < 1e-6, 1e-6, values)
        weights[1:, near] = weights[0, near]
        return weights

    def loss(values: Floats) -> tuple[float, Floats]:
        weights = weights_of(values)
        found = [gradient(weights, options, *part) for part in parts]
        slope = np.mean([slope for _, slope in found], axis=0)
        return -float(np.mean([value for value, _ in found])), -slope[free]

    best = minimize(loss, begun[free], jac=True, method="L-BFGS-B", options={"maxiter": steps})
    return with_weights(options, weights_of(best.x))


def with_weights(options: PoolingOptions, values: Floats) -> PoolingOptions:
    """Return the same options with other `Pooling.weights`, rounded to thousandths, as they are displayed."""
    first, *longer = (tuple(row) for row in np.round(np.atleast_2d(values), 3).tolist())
    return replace(
        options, weights=first[: len(NAMES)], recent_weights=first[len(NAMES) :], longer_weights=tuple(longer)
    )


def gradient(weights: Floats, options: PoolingOptions, text: Text, evidence: Evidence) -> tuple[float, Floats]:
    """Return the mean logarithm of the probability of a text's tokens, and how it changes with `Pooling.weights`."""
    change = np.zeros_like(weights)
    logs = _add_gradient(text, evidence, options.pooling._replace(weights=weights), change)
    # Contexts of the nearest word have one weight for all lengths.
    change[:, NEAR_KINDS] = change[:, NEAR_KINDS].sum(axis=0)
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
def _remember(now: int, text: Text, pooling: Pooling, weights: Floats, state: WorkSpace) -> None:
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
            recent[kind, word] = state.values[1, place] * text.recency[now]
            state.score[word] += weights[text.rows.shape[1] + kind] * recent[kind, word]


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
    weights = weights_before(text.rows[now], pooling.weights)
    left = _gather(now, text, table, weights, state)
    _remember(now, text, pooling, weights, state)
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
        weights, own = weights_before(text.rows[now], pooling.weights), weights_before(text.rows[now], gradient)
        _change(now, text, table, weights, total, state, own)
        for place in range(state.counters[1]):
            state.recent[:, state.remembered[place]] = 0.0
    return logs


def stream_of(path: Path) -> TokenStream:
    """Return the tokens of a file."""
    return TokenStream.from_documents(documents_of(path))


def documents_of(path: Path) -> list[list[list[str]]]:
    """Return the words of the sentences of the documents of a file, CoNLL-U or plain text."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".conllu":
        return [sentences_of(text)]
    if "\n# newdoc" not in f"\n{text}":
        return [[sentence] for sentence in _sentences(text)]
    return [list(_sentences(part)) for part in f"\n{text}".split("\n# newdoc")[1:]]


def _sentences(text: str) -> Iterator[list[str]]:
    for block in text.split("\n\n"):
        rows = [line.split("\t") for line in block.splitlines()]
        if words := [row[1] for row in rows if len(row) > 1 and row[0].isdigit()]:
            yield words


def first_tokens(stream: TokenStream, count: int) -> TokenStream:
    """Return the first tokens of a text."""
    return replace(stream, **{name: getattr(stream, name)[:count] for name in ("index", "place", "document")})


def main() -> None:
    """Print the weights by the length of the longest context that was seen, and the perplexity of each text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", help="pairs of a text to count and a text to choose by")
    parser.add_argument("--tokens", type=int, default=4000, help="tokens of each text to choose by")
    parser.add_argument("--steps", type=int, default=25)
    given = parser.parse_args()
    weighed = np.isin(np.arange(len(NAMES) + RECENT_KINDS), [kind - 1 for kind in BEST.kinds])
    weighed[len(NAMES) :] = True
    begun = with_weights(PoolingOptions(), np.where(weighed, 0.05, 0.0))
    texts = []
    for train, validation in zip(given.files[::2], given.files[1::2], strict=True):
        counted = stream_of(train)
        kinds = [CONTEXT_NAMES.index(name) for name in Specification(profile="contexts").contexts]
        model = LogLinearModel(build_tables([count_kinds(counted, kinds)], counted.words), begun)
        texts.append((model, first_tokens(stream_of(validation), given.tokens)))
    chosen = choose_weights(texts, steps=given.steps)
    for name, *weights in zip((*NAMES, *map("recent {}".format, range(3))), *chosen.pooling.weights, strict=True):
        print(f"{name:12}", *(f"{weight:7.3f}" for weight in weights))
    for (model, validation), path in zip(texts, given.files[1::2], strict=True):
        found = replace(model, options=chosen).score(validation)
        print(f"{path}: perplexity {math.exp(-found.log_probability.mean()):.2f}")


if __name__ == "__main__":
    main()
