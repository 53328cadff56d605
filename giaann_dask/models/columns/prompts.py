"""Prepare prompts for networks of columns, and put predicted neurons into words.

Does not cover: predicting (`giaann_dask.models.columns.predictor`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from giaann_dask.errors import PromptError
from giaann_dask.keys import pack_neuron, unpack_neuron
from giaann_dask.local_files import BYTE_ORDER_MARK
from giaann_dask.models.columns.flags import FlagChange, flags_of
from giaann_dask.models.columns.state.session import Contribution, FlagTable, PreparedSequence, StepResult, StepTrace
from giaann_dask.models.generation_options import require_prompt
from giaann_dask.models.results import Candidate, ConnectionKey, GeneratedToken, Reason
from giaann_dask.spec import MAXIMUM_TOKENS, Specification
from giaann_dask.text.blocks import CANDIDATE, NO_CONCEPT, FilterOptions, noun_text
from giaann_dask.text.ever_pos import EverPos
from giaann_dask.text.segmentation import encode_block
from giaann_dask.text.tagging import make_builder, tag_part
from giaann_dask.text.tokenizer import SubwordTokenizer
from giaann_dask.text.tokens import Part
from giaann_dask.text.vocabulary import Vocabulary, summarise


@dataclass(frozen=True, eq=False)
class PreparedPrompt:
    """A prompt divided into columns.

    Attributes
    ----------
    sequence : PreparedSequence
        Its neurons.
    words : tuple of str
        Its words as text has them, merged nouns with spaces.
    change : FlagChange
        What its words change in the flags of the commit.
    """

    sequence: PreparedSequence
    words: tuple[str, ...]
    change: FlagChange


def best_candidates(trace: StepTrace, count: int) -> list[tuple[int, float]]:
    """Return the best candidates of a step with their values, the predicted one first and always among them.

    Ties are in the order of `Candidates`.
    """
    candidates, chosen = trace.candidates, trace.result.predicted
    assert candidates is not None, "a step that predicts"
    assert chosen is not None, "a step that predicts"
    neurons, values = candidates.ranked(count)
    if count and chosen not in neurons:
        place = int(np.searchsorted(candidates.neuron, chosen))
        neurons[-1], values[-1] = chosen, float(candidates.value[place])
    pairs = list(zip(neurons.tolist(), values.tolist(), strict=True))
    return sorted(pairs, key=lambda pair: pair[0] != chosen)


def prepare_prompt(
    prompt: str,
    vocabulary: Vocabulary,
    lexicon: EverPos | SubwordTokenizer,
    *,
    specification: Specification,
    tagger: str,
    flags: FlagTable | None = None,
) -> PreparedPrompt:
    """Divide a prompt into columns.

    Parameters
    ----------
    prompt : str
        Some words, with at least one noun.
    vocabulary : Vocabulary
        The saved dictionaries of the commit; expanded in place.
    lexicon : EverPos or SubwordTokenizer
        Which words can end a column, or what divides text into subwords.
    specification : Specification
        Of the network.
    tagger : str
        How the prompt is tagged.
    flags : FlagTable, optional
        Those of the dictionaries as saved; read from them by default, which takes longer the more they hold.

    Raises
    ------
    PromptError
        If it cannot be divided.
    """
    require_prompt(prompt)
    base = flags or flags_of(vocabulary)
    # As in files, a mark of byte order is no text.
    part = Part("the prompt", "text", (prompt.replace(BYTE_ORDER_MARK, ""),), (0,))
    text = tag_part(part, tagger)
    limits = FilterOptions.of(specification)
    # All of the prompt is one sequence.
    whole = replace(limits, seed_tokens=0, maximum_tokens=MAXIMUM_TOKENS, sentences=max(1, len(text)), crop=False)
    builder = make_builder(lexicon, whole)
    builder.add_part(text)
    block = builder.build()
    if len(block) == 0:
        raise PromptError(
            f"the prompt has {len(text.entry)} words",
            f"1 to {MAXIMUM_TOKENS}",
            "give another prompt",
        )
    encoded = encode_block(block, vocabulary.extend(summarise(block)), specification)
    if encoded.status[0] != CANDIDATE:
        missing = "a noun" if encoded.status[0] == NO_CONCEPT else "a verb or preposition between its nouns"
        raise PromptError(f"the prompt {prompt[:80]!r} lacks {missing}", "words that form columns", "add one")
    text_of = str if specification.tokens == "subwords" else noun_text
    words = tuple(
        text_of(encoded.surfaces[s]) if s >= 0 else vocabulary.features[f]
        for s, f in zip(encoded.surface, encoded.feature, strict=True)
    )
    sequence = PreparedSequence(
        neuron=pack_neuron(encoded.column, encoded.feature),
        noun=encoded.feature == 0,
        number=encoded.first_sequence,
    )
    return PreparedPrompt(sequence, words, FlagChange.between(base, vocabulary, encoded.feature))


def in_words(
    result: StepResult, best: Sequence[tuple[int, float]], reasons: Sequence[Contribution], vocabulary: Vocabulary
) -> GeneratedToken:
    """Put the prediction of a step into words, with its best candidates and the connections that raised it."""
    neuron = result.predicted
    assert neuron is not None, "a step that predicts"
    return GeneratedToken(
        *word_and_column(neuron, vocabulary),
        tuple(Candidate(*word_and_column(other, vocabulary), value) for other, value in best),
        result.candidates,
        tuple(
            Reason(
                *word_and_column(reason.source, vocabulary),
                reason.step - 1,
                reason.segment,
                reason.branch,
                reason.strength,
                reason.contribution,
                ConnectionKey(reason.source, neuron, reason.segment, reason.branch),
            )
            for reason in reasons
        ),
    )


def word_and_column(neuron: int, vocabulary: Vocabulary) -> tuple[str, str]:
    """Return the word of a neuron key, and the concept of its column."""
    column, feature = (int(x[0]) for x in unpack_neuron(np.array([neuron])))
    concept = vocabulary.concepts[column]
    if feature:
        return vocabulary.features[feature], concept
    if vocabulary.delimiter_since is not None and vocabulary.features[column + 1 : column + 2] != [concept]:
        # A column that is named by words opens with the first subword of any of them.
        return " " + noun_text(concept), concept
    return concept, concept
