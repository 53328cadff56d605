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

import numpy as np

from giaann_dask.errors import EmptyInputError
from giaann_dask.lazy import jit, jit_inner
from giaann_dask.models.contexts.counting import count_contexts
from giaann_dask.models.contexts.kernel import (
    RECENT_KINDS,
    SMALL,
    Evidence,
    Pooling,
    Text,
    WorkSpace,
    add_evidence,
    work_space,
)
from giaann_dask.models.contexts.scores import NAMES, Floats, LogLinearModel, PoolingOptions
from giaann_dask.models.contexts.tables import collect_counts
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
    used, text = values != 0, model.text(validation)
    mean, square, best = np.zeros(len(values)), np.zeros(len(values)), (-math.inf, values)
    for step in range(1, steps + 1):
        # A weight that crosses 0 is not taken for one that is left out.
        given = np.where(used & (np.abs(values) < 1e-3), 1e-3, values)
        value, slope = gradient(replace(model, options=with_weights(model.options, given)), validation, text)
        best = max(best, (value, values.copy()), key=lambda pair: pair[0])
        mean, square = 0.8 * mean + 0.2 * slope * used, 0.95 * square + 0.05 * slope**2
        scale = np.sqrt(square / (1 - 0.95**step)) + 1e-9
        values = np.clip(values + rate * (1 - 0.9 * step / steps) * mean / (1 - 0.8**step) / scale, -10, 10)
    return replace(model, options=with_weights(model.options, best[1]))


def with_weights(options: PoolingOptions, values: Floats) -> PoolingOptions:
    """Return the same options with other weights, rounded to thousandths, as they are displayed."""
    rounded = tuple(np.round(values, 3).tolist())
    return replace(options, weights=rounded[: len(NAMES)], recent_weights=rounded[len(NAMES) :])


def gradient(model: LogLinearModel, stream: TokenStream, text: Text) -> tuple[float, Floats]:
    """Return the mean logarithm of the probability of a text's tokens, and how it changes with the weights."""
    change = np.zeros(len(NAMES) + RECENT_KINDS)
    logs = _add_gradient(text, model.evidence, model.options.pooling, change)
    return float(logs.mean()), change / len(stream)


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
    counts = count_contexts(TokenStream.from_documents(documents_of(given.train)))
    begun = with_weights(PoolingOptions(), np.full(len(NAMES) + 3, 0.05))
    model = LogLinearModel(collect_counts([counts.run], counts.words).tables(), begun)
    validation = TokenStream.from_documents(documents_of(given.validation))
    chosen = choose_weights(model, validation, steps=given.steps)
    weights = (*chosen.options.weights, *chosen.options.recent_weights)
    for name, weight in zip((*NAMES, *(f"recent {n}" for n in range(len(weights) - len(NAMES)))), weights, strict=True):
        print(f"{name:12} {weight:7.3f}")
    before, after = (math.exp(-each.score(validation).log_probability.mean()) for each in (model, chosen))
    print(f"perplexity of the validation text {before:.2f} with equal weights, {after:.2f} with these")


if __name__ == "__main__":
    main()
