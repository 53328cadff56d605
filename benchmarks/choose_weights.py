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
from giaann_dask.models.contexts.counting import count_contexts
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
    used, text = values != 0, model.text(validation)
    mean, square, best = np.zeros(len(values)), np.zeros(len(values)), (-math.inf, values)
    for step in range(1, steps + 1):
        # A weight that crosses 0 is not taken for one that is left out.
        given = np.where(used & (np.abs(values) < 1e-3), 1e-3, values)
        value, slope = replace(model, options=model.options.with_weights(given)).gradient(validation, text)
        best = max(best, (value, values.copy()), key=lambda pair: pair[0])
        mean, square = 0.8 * mean + 0.2 * slope * used, 0.95 * square + 0.05 * slope**2
        scale = np.sqrt(square / (1 - 0.95**step)) + 1e-9
        values = np.clip(values + rate * (1 - 0.9 * step / steps) * mean / (1 - 0.8**step) / scale, -10, 10)
    return replace(model, options=model.options.with_weights(best[1]))


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
    begun = PoolingOptions().with_weights(np.full(len(NAMES) + 3, 0.05))
    model = LogLinearModel(build_tables([counts.run], counts.words), begun)
    validation = TokenStream.from_documents(documents_of(given.validation))
    chosen = choose_weights(model, validation, steps=given.steps)
    weights = (*chosen.options.weights, *chosen.options.recent_weights)
    for name, weight in zip((*NAMES, *(f"recent {n}" for n in range(len(weights) - len(NAMES)))), weights, strict=True):
        print(f"{name:12} {weight:7.3f}")
    before, after = (math.exp(-each.score(validation).log_probability.mean()) for each in (model, chosen))
    print(f"perplexity of the validation text {before:.2f} with equal weights, {after:.2f} with these")


if __name__ == "__main__":
    main()
