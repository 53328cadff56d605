"""Continue a prompt with a network of columns as one task of a cluster, with the reasons for each token.

Prompts are prepared and neurons are translated into words here. Does not cover: one step
(`giaann_dask.inference.v1.session`, `giaann_dask.inference.v2.session`) and beam search
(`giaann_dask.inference.v1.beam`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from giaann_dask.cluster import result, task_key
from giaann_dask.cluster.sharing import open_commit
from giaann_dask.device import one_thread
from giaann_dask.encoding.stream import StreamOptions
from giaann_dask.errors import PromptError
from giaann_dask.inference.continuation import (
    Candidate,
    Continuation,
    GeneratedToken,
    GenerationOptions,
    Reason,
    require_prompt,
)
from giaann_dask.inference.handle import (
    CommitHandle,
    FlagChange,
    changed_flags,
    flags_of,
    open_flags_with,
    rows_are_remote,
    submit_flags,
)
from giaann_dask.inference.profiles import (
    fitting_rules,
    open_session,
    prompt_device,
    require_v1,
)
from giaann_dask.inference.rows.messages import RowProjection
from giaann_dask.inference.rows.remote import RegionKeys, row_source
from giaann_dask.inference.rows.source import RowSource
from giaann_dask.inference.rows.stored import KEPT_BYTES, StoredRows
from giaann_dask.inference.state.candidates import Candidates
from giaann_dask.inference.state.sequence import FlagTable, PreparedSequence
from giaann_dask.inference.v1.beam import BeamSession
from giaann_dask.inference.v1.pull_batch import PullSession
from giaann_dask.inference.v2.session import V2Session
from giaann_dask.keys import pack_neuron, unpack_neuron
from giaann_dask.local_files import BYTE_ORDER_MARK
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.run import Run
from giaann_dask.spec import MAXIMUM_TOKENS, Specification
from giaann_dask.store.commits import CommitReader
from giaann_dask.text.block_tagging import make_builder, tag_part
from giaann_dask.text.blocks import CANDIDATE, NO_CONCEPT, FilterOptions
from giaann_dask.text.ever_pos import EverPos
from giaann_dask.text.noun_names import noun_text
from giaann_dask.text.segmentation import encode_block
from giaann_dask.text.tokenizer import SubwordTokenizer
from giaann_dask.text.tokens import Part
from giaann_dask.text.vocabulary import Vocabulary, summarise
from giaann_dask.tracing.index import ConnectionKey

if TYPE_CHECKING:
    from distributed import Client


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


@dataclass(frozen=True, slots=True, eq=False)
class RawToken:
    """A generated token as neuron keys, the result of the ``generate`` task."""

    neuron: int
    best: npt.NDArray[np.int64]
    values: npt.NDArray[np.float32]
    candidates: int
    reasons: tuple[tuple[int, int, int, int, float, float], ...]


def generate_text(client: Client | None, reader: CommitReader, prompt: str, options: GenerationOptions) -> Continuation:
    """Continue a prompt.

    Parameters
    ----------
    client : Client or None
        Of the cluster that holds the network; without one it is read into this process.
    reader : CommitReader
        The commit that predicts.
    prompt : str
        Some words, with at least one noun. All of them are given; prediction starts after them.
    options : GenerationOptions
        How much is generated.

    Raises
    ------
    PromptError
        If the prompt cannot be divided into concept columns.
    """
    specification = reader.manifest().specification
    options.require_fit(specification)
    rules = fitting_rules(specification, options.inference)
    vocabulary = reader.saved_vocabulary()
    options = replace(options, inference=rules)
    lexicon = reader.tokenizer() or reader.ever_pos()
    prepared = prepare_prompt(prompt, vocabulary, lexicon, specification=specification, tagger=options.tagger)
    if client is None:
        flags = flags_of(reader.saved_vocabulary(), specification.is_order_free)
        flags = open_flags_with(reader, flags, rules.auxiliary) if rules.auxiliary else flags
        tokens, stop = _continue(prepared.sequence, prepared.change, flags, StoredRows(reader), specification, options)
    else:
        key = task_key("generate", reader.commit, str(reader.path), prompt, options)
        if options.rows.mode == "auto" and not rows_are_remote(client, reader, options.rows):
            # Opening all regions for one prompt would cost more than the rows that it reads.
            place = (str(reader.path), reader.commit, submit_flags(client, reader, rules.auxiliary))
            future = client.submit(generate_stored, prepared.sequence, prepared.change, *place, options, key=key)
        else:
            handle = CommitHandle(client, reader, options.rows)
            network = (handle.flags(rules.auxiliary), handle.placement, handle.regions.argument, specification)
            future = handle.submit(generate, prepared.sequence, prepared.change, *network, options, key=key)
        tokens, stop = result(future)
    return Continuation(
        prepared.words,
        tuple(in_words(token, vocabulary) for token in tokens),
        stop,
        reader.commit,
        specification.tokens == "subwords",
        network=str(reader.path),
    )


def generate_stored(
    sequence: PreparedSequence, change: FlagChange, path: str, commit: str, flags: FlagTable, options: GenerationOptions
) -> tuple[list[RawToken], str | None]:
    """Continue a prepared prompt from rows that are read from the store, as a task."""
    rows, specification = _stored_rows(path, commit)
    found = _continue(sequence, change, flags, rows, specification, options)
    rows.release_beyond(KEPT_BYTES)
    return found


@lru_cache(maxsize=1)
def _stored_rows(path: str, commit: str) -> tuple[StoredRows, Specification]:
    """Return the rows of a commit in the store, as a process has opened them for the prompt before."""
    reader = open_commit(path, commit)
    return StoredRows(reader, whole=False), reader.manifest().specification


def generate(
    sequence: PreparedSequence,
    change: FlagChange,
    flags: FlagTable,
    placement: Placement,
    regions: Sequence[Run] | RegionKeys,
    specification: Specification,
    options: GenerationOptions,
) -> tuple[list[RawToken], str | None]:
    """Continue a prepared prompt from regions of a cluster, as a task."""
    sends = fitting_rules(specification, options.inference).sends_strengths
    weighed = options.reasons > 0 or options.beam.weighs or sends
    rows = row_source(placement, regions, projection=RowProjection(strengths=weighed))
    return _continue(sequence, change, flags, rows, specification, options)


def _continue(
    sequence: PreparedSequence,
    change: FlagChange,
    flags: FlagTable,
    rows: RowSource,
    specification: Specification,
    options: GenerationOptions,
) -> tuple[list[RawToken], str | None]:
    """Continue a prepared prompt in this process."""
    rules = fitting_rules(specification, options.inference)
    network = (specification, rows, changed_flags(flags, change))
    device = prompt_device(options.device)
    session: PullSession | BeamSession | V2Session
    if options.beam.searches:
        session = BeamSession(*network, beam=options.beam, options=require_v1(rules, "beam search"), device=device)
    else:
        session = open_session(*network, options=rules, device=device)
    with one_thread():
        outcome = session.generate(sequence, options.tokens)
    tokens = []
    for step, candidates in zip(outcome.steps, outcome.candidates, strict=True):
        if step.seed or step.predicted is None or candidates is None:
            continue
        reasons = session.explain(outcome.steps, step.index) if options.reasons else ()
        ranked = sorted(reasons, key=lambda r: -r.contribution)[: options.reasons]
        best, values = best_candidates(candidates, options.runners_up, step.predicted)
        tokens.append(
            RawToken(
                step.predicted,
                best,
                values,
                step.candidates,
                tuple((r.step, r.source, r.segment, r.branch, r.strength, r.contribution) for r in ranked),
            )
        )
    return tokens, outcome.stop


def best_candidates(
    candidates: Candidates, count: int, chosen: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Return the best candidates, the chosen one always among them, ties in the order of `Candidates`."""
    neurons, values = candidates.ranked(count)
    if count and chosen not in neurons:
        place = int(np.searchsorted(candidates.arrays[0], chosen))
        neurons[-1], values[-1] = chosen, float(candidates.value[place])
    return neurons, values


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
    rules = StreamOptions.of(specification).rules()
    encoded = encode_block(block, vocabulary.extend(summarise(block)), specification.branches, **rules)
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


def in_words(token: RawToken, vocabulary: Vocabulary) -> GeneratedToken:
    """Translate a generated token into words, the chosen candidate first."""
    word, column = word_and_column(token.neuron, vocabulary)
    chosen = [i for i, n in enumerate(token.best) if int(n) == token.neuron]
    order = [*chosen, *(i for i in range(len(token.best)) if i not in chosen)]
    return GeneratedToken(
        word,
        column,
        tuple(Candidate(*word_and_column(int(token.best[i]), vocabulary), float(token.values[i])) for i in order),
        token.candidates,
        tuple(
            Reason(
                *word_and_column(source, vocabulary),
                position - 1,
                segment,
                branch,
                strength,
                contribution,
                ConnectionKey(source, token.neuron, segment, branch),
            )
            for position, source, segment, branch, strength, contribution in token.reasons
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
