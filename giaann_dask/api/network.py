"""Evaluate, generate from, draw and export a trained network at one commit.

`Network` fills in the choices that a user leaves open; the work is done by the folders below. Modules that predict are
imported by the methods that predict, so that inspecting a network does not import PyTorch. Training is in `training`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from giaann_dask.api.cluster import ClientLike, connect, observe_work, use_client
from giaann_dask.cluster import attempt, current_client, require_synchronous
from giaann_dask.errors import OptionError, ReportMissingError
from giaann_dask.events import Observer, ignore
from giaann_dask.keywords import names_keywords
from giaann_dask.object_urls import with_storage_options
from giaann_dask.registry import name_model
from giaann_dask.representations import Summarised, Summary
from giaann_dask.spec import Specification
from giaann_dask.store.commits import CommitReader
from giaann_dask.store.corpus import EncodedCorpus, is_corpus
from giaann_dask.store.manifest import Manifest
from giaann_dask.store.network_store import CommitEntry, NetworkStore, Reference
from giaann_dask.store.origins import Origins
from giaann_dask.store.places import StorePlace
from giaann_dask.text.blocks import JOINER, noun_text
from giaann_dask.text.ever_pos import EverPos

if TYPE_CHECKING:
    import dask.array as da
    import dask.dataframe as dd
    from distributed import Client, Future
    from icechunk import IcechunkStore
    from matplotlib.figure import Figure

    from giaann_dask.api.columns import Column, Columns
    from giaann_dask.api.text_options import TextOptions
    from giaann_dask.api.texts import Inputs
    from giaann_dask.diagnostics.network_report.page import NetworkReport
    from giaann_dask.diagnostics.pictures import Pictures
    from giaann_dask.diagnostics.pictures.draw_options import DrawOptions
    from giaann_dask.models.base import Predictor
    from giaann_dask.models.columns.connection_table import ConnectionTable
    from giaann_dask.models.generation_options import BatchOptions, EvaluationOptions, GenerationOptions
    from giaann_dask.models.results import EvaluationReport
    from giaann_dask.models.words.score_report import Baseline, ScoreReport, ScoringOptions
    from giaann_dask.predict.claims import Claim, ClaimReport
    from giaann_dask.predict.generation import Continuation, PromptOpening, PromptSession, Sessions
    from giaann_dask.store.export import Compression, Exported
    from giaann_dask.tracing import Trace
    from giaann_dask.training.training_report import TrainingReport


@names_keywords
def open(
    path: str | os.PathLike[str],
    ref: str | None = None,
    *,
    profile: str | None = None,
    storage_options: Mapping[str, object] | None = None,
) -> Network:
    """Open a trained network at one commit.

    Parameters
    ----------
    path : str or path
        Folder or URL of the network.
    ref : str, optional
        Tag, branch or identity of a commit; the last commit of ``main`` by default.
    profile : str, optional
        Import path ``module:attribute`` of the network's model, where no installed package has it. A stored path is
        not imported unless it is named, here or in a `Specification`; it may be until the process ends.
    storage_options : mapping of str to str or bool, optional
        How the object store is reached (`giaann_dask.object_urls.StorageOptions`); what is left out comes from the
        environment.

    Returns
    -------
    Network

    Raises
    ------
    StoreMissingError, StoreFormatError, StoreDamagedError
        If there is no such network or commit, or if it cannot be read.

    Examples
    --------
    >>> import giaann_dask as gd
    >>> gd.open("none")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    giaann_dask.errors.StoreMissingError: there is no network at none; ...
    """
    name_model(profile or "")
    return Network(with_storage_options(path, storage_options), ref)


class TextPart(NamedTuple):
    """Part of text that a network was trained on.

    Attributes
    ----------
    identity : str
        22 hexadecimal digits that follow from its text and tagger.
    sequences : int
        How many of its sequences were counted.
    complete : bool
        Whether these are all of them.
    place : str or None
        Where it was read, with options of reading, as JSON; None where that is not known, as in a network without an
        index.
    """

    identity: str
    sequences: int
    complete: bool
    place: str | None


@names_keywords
class Network(Summarised, Mapping[str, "Column"]):
    """A trained network at one commit; a mapping of concepts to columns.

    Parameters
    ----------
    path : str or Path
        Folder of the network.
    commit : str, optional
        Identity of a commit; the last one by default.
    training_report : TrainingReport, optional
        Figures of the training that wrote the commit.
    held : sequence of Future
        Runs of the commit that stay in the memory of a cluster as long as this object exists, for methods that open it
        there.

    Raises
    ------
    StoreMissingError, StoreFormatError, StoreDamagedError
        If there is no such network or commit, or if it cannot be read.

    Examples
    --------
    >>> import tempfile
    >>> import giaann_dask as gd
    >>> from giaann_dask.data import sample_text
    >>> with gd.connect(workers=0):
    ...     network = gd.train(sample_text(), Path(tempfile.mkdtemp()) / "village")
    >>> gd.open(network.path).generate("The old miller carried the flour").text
    'to the baker.'
    >>> [token.word for token in network.session("The old miller carried the flour")]
    ['to', 'the', 'baker', '.']
    >>> network.describe()["sequences"], len(network.text_parts()), len(network.digest())
    (405, 1, 64)
    >>> network.tag("first")
    >>> [(each.kind, each.name) for each in network.references()], len(network.log())
    ([('branch', 'main'), ('tag', 'first')], 2)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        commit: str | None = None,
        *,
        training_report: TrainingReport | None = None,
        held: Sequence[Future] = (),
    ) -> None:
        self._training_report = training_report
        self._held = held
        self._store = NetworkStore(os.fspath(path))
        self.path = self._store.path
        self._reader: CommitReader = self._store.open(self._store.head() if commit is None else commit)
        self._columns: Columns | None = None
        # By client and kind of rows; None for this process.
        self._opened: dict[tuple[Any, ...] | None, Predictor] = {}
        self._prompt_opening: PromptOpening | None = None

    def __fspath__(self) -> str:
        """Return the folder, so that a network can be given where a path can."""
        return str(self.path)

    @property
    def commit(self) -> str:
        """Identity of the commit."""
        return self._reader.commit

    @property
    def training_report(self) -> TrainingReport:
        """Figures of the training that returned this object.

        Raises
        ------
        ReportMissingError
            If the network was opened: reports are not stored.
        """
        if self._training_report is None:
            raise ReportMissingError(
                f"network {self.path} was opened, not trained",
                "the network that train returned",
                "read counts and sizes from manifest or describe()",
            )
        return self._training_report

    @property
    def manifest(self) -> Manifest:
        """Counts and sizes."""
        return self._reader.manifest()

    @property
    def specification(self) -> Specification:
        """Specification of the network: the numbers that define training."""
        return self.manifest.specification

    @property
    def pruned_below(self) -> float | None:
        """Strength below which `prune` left out connections; None where there are all."""
        units, spec = self.manifest.pruned_below, self.specification
        return units / spec.strength_unit if units else None

    def log(self) -> list[CommitEntry]:
        """Return the commit and all earlier ones, latest first."""
        return self._store.log(self.commit)

    def references(self) -> list[Reference]:
        """Return the branches and tags of the network with their commits."""
        return self._store.references()

    def tag(self, name: str) -> None:
        """Give the commit a name that stays with it; see `giaann_dask.store.network_store.Reference`.

        Parameters
        ----------
        name : str
            Name that no tag of the network has or had.

        Raises
        ------
        OptionError
            If the name cannot be one.
        StoreExistsError
            If the network has it.
        """
        with self._store.lock():
            self._store.add_reference("tag", name, self.commit)

    def branch(self, name: str) -> None:
        """Create a branch at the commit, to which ``train(..., branch=name)`` commits.

        Parameters
        ----------
        name : str
            Name that no branch of the network has.

        Raises
        ------
        OptionError
            If the name cannot be one.
        StoreExistsError
            If the network has it.
        """
        with self._store.lock():
            self._store.add_reference("branch", name, self.commit)

    def commits(self) -> list[tuple[str, str]]:
        """Return identity and message of every commit, latest first."""
        return self._store.commits()

    def text_parts(self) -> list[TextPart]:
        """Return the parts of text that the network was trained on, as its ledger has them."""
        origins = self._reader.origins() or Origins()
        return [
            TextPart(entry.identity.hex(), entry.sequences, entry.complete, origins.place(number))
            for number, entry in enumerate(self._reader.ledger())
        ]

    def describe(self) -> dict[str, Any]:
        """Return counts and sizes, ready for JSON; bytes in memory are those of the encoded runs."""
        manifest, tokenizer = self.manifest, self._reader.tokenizer()
        return {
            "concepts": manifest.saved_concepts,
            "features": manifest.saved_features,
            "neurons": manifest.neurons,
            "connections": manifest.connections,
            "exact": manifest.exact,
            "sequences": manifest.sequences,
            "trained": manifest.trained,
            "skipped": manifest.skipped(),
            "tokens": manifest.tokens,
            "runs": len(manifest.runs),
            "regions": manifest.regions,
            "bytes_on_disk": StorePlace(str(self.path)).size(),
            "bytes_in_memory": sum(run.nbytes for run in manifest.runs),
            **({"index": manifest.index_size()} if manifest.specification.trace else {}),
            **({"pruned_below": pruned} if (pruned := self.pruned_below) is not None else {}),
            "commit": self.commit,
            "commits": len(self.commits()),
            "specification": manifest.specification.describe(),
            **({} if tokenizer is None else {"tokenizer": tokenizer.describe()}),
        }

    def require_fit(self, options: EvaluationOptions | GenerationOptions) -> None:
        """Raise an `OptionError` when options do not fit this network; no cluster is needed for it."""
        from giaann_dask.models import model_of
        from giaann_dask.models.generation_options import GenerationOptions

        asked = options
        if not isinstance(asked, GenerationOptions):
            asked = GenerationOptions(inference=asked.inference, model_options=asked.model_options)
        model_of(self.specification).require_fit(self.specification, asked)

    def evaluate(
        self,
        inputs: Inputs,
        *,
        client: ClientLike | None = None,
        top_k: Sequence[int] | None = None,
        max_sequences: int | None = None,
        options: EvaluationOptions | None = None,
        text: TextOptions | None = None,
        progress: bool | None = None,
        observer: Observer = ignore,
        **keywords: Any,
    ) -> EvaluationReport:
        """Return the accuracy of next-token prediction on a text; of profile ``contexts`` its probability, too.

        Parameters
        ----------
        inputs : str, Path, Files or iterable of texts
            Text to predict; see `giaann_dask.train`.
        client : Client, cluster or str, optional
            The current client by default, else that of a new local cluster.
        top_k : sequence of int, optional
            Values of k of top-k accuracy.
        max_sequences : int, optional
            Sequences to read at most.
        options : EvaluationOptions, optional
            All options; the keywords above replace its fields. Profile ``contexts`` uses its limits and `top_k`.
        text : TextOptions, optional
            How text is read and tagged.
        progress : bool, optional
            Whether progress bars are shown; by default in notebooks.
        observer : callable, optional
            Called with every event.
        **keywords
            Fields of `options` and `text`, and of the options within these, by their names.

        Returns
        -------
        EvaluationReport
            What the network's model measures: a `ScoreReport` of profile ``contexts``, as from `score`.

        Raises
        ------
        OptionError
            If the options do not fit the network.
        EmptyInputError
            If no sentence of the text is long enough.
        """
        from giaann_dask.api.calibration import calibrate
        from giaann_dask.api.texts import commit_sources, read_inputs
        from giaann_dask.diagnostics.progress import Workload
        from giaann_dask.models import model_of
        from giaann_dask.models.base import EvaluatedText
        from giaann_dask.models.generation_options import EvaluationOptions

        chosen = options or EvaluationOptions()
        chosen = chosen if top_k is None else replace(chosen, top_k=tuple(top_k))
        chosen = chosen if max_sequences is None else replace(chosen, max_sequences=max_sequences)
        if chosen.model_options:
            self.require_fit(chosen)
        read, tagging = read_inputs(inputs, text)
        corpora = [EncodedCorpus(name) for name in read if is_corpus(name)]
        # Accuracy by part of speech is reported where all corpora store parts of speech.
        tagged = self.specification.traits.columns and all(corpus.attributes["parts_of_speech"] for corpus in corpora)
        sources = commit_sources(self._reader, tagging, drop_short=True)
        sources = replace(sources, filter=replace(sources.filter, parts_of_speech=tagged))
        workload = Workload(read, tagging.reading, chosen.max_sequences)
        with observe_work(client, workload, progress, observer) as (used, reporting):
            calibrate(used, chosen.device)
            model = model_of(self.specification)
            return model.evaluate(EvaluatedText(used, self._reader, read, sources, reporting), chosen)

    def score(
        self,
        inputs: Inputs,
        *,
        client: ClientLike | None = None,
        options: ScoringOptions | None = None,
        text: TextOptions | None = None,
        progress: bool | None = None,
        observer: Observer = ignore,
        **keywords: Any,
    ) -> ScoreReport:
        """Return how probable a text is to a network of profile ``contexts`` (`giaann_dask.models.words.score_report`).

        Parameters
        ----------
        inputs, client, text, progress, observer
            See `evaluate`.
        options : ScoringOptions, optional
            Limits, and whether n-grams are scored, too.
        **keywords
            Fields of `options` and `text`, and of the options within these, by their names.

        Returns
        -------
        ScoreReport
            Also of each record: `ScoreReport.records` in the order of the input, `ScoreReport.frame` with the index of
            a data frame.

        Raises
        ------
        OptionError
            If the network is of another profile.
        EmptyInputError
            If no sentence is longer than the seed tokens.
        """
        from giaann_dask.api.texts import read_inputs, sources_of
        from giaann_dask.diagnostics.progress import Workload
        from giaann_dask.models import model_of
        from giaann_dask.models.base import EvaluatedText
        from giaann_dask.models.words.score_report import ScoringOptions

        chosen, (read, tagging) = options or ScoringOptions(), read_inputs(inputs, text)
        sources = sources_of(self.specification, tagging, EverPos())
        workload = Workload(read, tagging.reading, chosen.max_sequences)
        with observe_work(client, workload, progress, observer) as (used, reporting):
            model = model_of(self.specification)
            return model.score(EvaluatedText(used, self._reader, read, sources, reporting), chosen)

    def compare_ngrams(
        self,
        inputs: Inputs,
        training: Inputs | None = None,
        *,
        client: ClientLike | None = None,
        options: ScoringOptions | None = None,
        text: TextOptions | None = None,
        **keywords: Any,
    ) -> Baseline:
        """Return n-grams, and the rules of profile ``contexts``, on the tokens that `evaluate` predicts.

        They are counted on the sequences that a network of profile ``v1`` or ``v2`` trains of the text
        `training`; a network of profile ``contexts`` has their counts (see `score`).

        Parameters
        ----------
        inputs, client, text
            See `evaluate`.
        training : str, Path, Files or iterable of texts
            Text that the network was trained on, or other text to count n-grams on; required.
        options : ScoringOptions, optional
            Limits of what is read.
        **keywords
            Fields of `options` and `text`, and of the options within these, by their names.

        Returns
        -------
        Baseline

        Raises
        ------
        OptionError
            If the network is of profile ``contexts``, or no training text is given.
        """
        from giaann_dask.api.text_options import TextOptions
        from giaann_dask.api.texts import as_sources, commit_sources
        from giaann_dask.models.contexts.evaluation import BaselineTexts, score_same_tokens
        from giaann_dask.models.words.score_report import ScoringOptions

        spec = self.specification
        if not spec.traits.columns:
            remedy = 'call score(text, baseline="ngram")'
            raise OptionError(f"n-grams beside a network of profile {spec.profile}", "its own counts", remedy)
        if training is None:
            expected = "the text that the network was trained on, to count n-grams on it"
            raise OptionError("no training text", expected, "call compare_ngrams(text, training)", names=("training",))
        trained, tested = as_sources(training), as_sources(inputs)
        chosen = (text or TextOptions()).fitting([*trained, *tested])
        read = [commit_sources(self._reader, chosen, drop_short=short) for short in (False, True)]
        texts = BaselineTexts(trained, tested, *read)
        with use_client(client) as used, attempt():
            return score_same_tokens(used, self._reader, texts, options or ScoringOptions())

    def generate(
        self,
        prompt: str,
        *,
        client: ClientLike | None = None,
        max_tokens: int | None = None,
        temperature: float | None = None,
        seed: int | None = None,
        explain: bool | None = None,
        options: GenerationOptions | None = None,
        **keywords: Any,
    ) -> Continuation:
        """Return the continuation of a prompt.

        Parameters
        ----------
        prompt : str
            Text to continue.
        client : Client, cluster or str, optional
            The current client by default. Without a client, the prompt is continued in this process.
        max_tokens : int, optional
            Maximum number of tokens to generate; 20 by default.
        temperature : float, optional
            In profile ``contexts``: 0, the default, takes the most probable word, 1 samples by probability.
        seed : int, optional
            Seed of the sampling; random by default.
        explain : bool, optional
            Whether the continuation names the connections that caused each token; it does by default.
        options : GenerationOptions, optional
            All options; the keywords above replace its fields.
        **keywords
            Fields of `options`, and of the options within these, by their names.

        Returns
        -------
        Continuation

        Raises
        ------
        PromptError
            If the prompt cannot be continued.
        OptionError
            If the options do not fit the network.
        """
        from giaann_dask.predict.generation import PromptOpening, generate

        wanted = _generation_options(options, max_tokens, temperature, seed, explain)
        if client is None and current_client() is None:
            return generate(None, self._reader, prompt, wanted)
        self._prompt_opening = self._prompt_opening or PromptOpening()
        with use_client(client) as used, attempt():
            return generate(used, self._reader, prompt, wanted, self._prompt_opening)

    def trace(
        self,
        prompt: str,
        *,
        client: ClientLike | None = None,
        max_tokens: int | None = None,
        sentences: int = 3,
        texts: Inputs = (),
        options: GenerationOptions | None = None,
        **keywords: Any,
    ) -> Trace:
        """Continue a prompt, and return the training sentences behind each token.

        Parameters
        ----------
        prompt, client, max_tokens, options
            See `generate`; `GenerationOptions.reasons` says how many connections of each token are traced.
        sentences : int
            Sentences to show for each connection, those with the largest shares of its strength.
        texts : str, Path, Files or iterable of texts
            Places of the training text, tried before those that it was read from; see `giaann_dask.train`.
        **keywords
            Fields of `options`, and of the options within these, by their names.

        Returns
        -------
        Trace

        Raises
        ------
        OptionError
            If the network was trained without an index (``Specification(trace=True)``).
        PromptError
            If the prompt cannot be continued.

        Examples
        --------
        >>> import tempfile
        >>> import giaann_dask as gd
        >>> from giaann_dask.data import sample_text
        >>> with gd.connect(workers=0):
        ...     village = gd.train(
        ...         sample_text(), Path(tempfile.mkdtemp()) / "village", specification=gd.Specification(trace=True)
        ...     )
        >>> trace = village.trace("The old miller carried the flour", max_tokens=1)
        >>> trace.tokens[0].word, trace.tokens[0].connections[0].sequences
        ('to', 2)
        """
        from giaann_dask.api.texts import as_sources
        from giaann_dask.predict.generation import trace_reasons
        from giaann_dask.tracing import require_index

        require_index(self._reader)
        continuation = self.generate(prompt, client=client, max_tokens=max_tokens, explain=True, options=options)
        return trace_reasons(continuation, sentences, as_sources(texts))

    def similar_words(self, text: str, *, most: int = 3) -> list[tuple[str, list[str]]]:
        """Return the words of a text that the network does not know, each with the most similar ones that it knows.

        Parameters
        ----------
        text : str
            Such as a prompt that nothing follows.
        most : int
            Similar words of each at most.

        Examples
        --------
        >>> import tempfile
        >>> import giaann_dask as gd
        >>> with gd.connect(workers=0):
        ...     mill = gd.train(["The old miller carried the flour to the baker."], Path(tempfile.mkdtemp()) / "mill")
        >>> mill.similar_words("The old miler carried")
        [('miler', ['miller'])]
        """
        import difflib

        vocabulary = self._reader.saved_vocabulary()
        concepts, features = vocabulary.concepts, vocabulary.features
        # All other nouns, which may be a million, are named as text has them.
        joined = set(map(noun_text, concepts.having(JOINER)))
        texts = joined.union(*map(str.split, joined))

        def is_known(word: str) -> bool:
            noun = None if JOINER in word else vocabulary.concept(word)
            return word in texts or noun is not None or vocabulary.feature(word) is not None

        found = []
        for word in dict.fromkeys(re.findall(r"[^\W\d_]+(?:_+[^\W\d_]+)*", text.lower())):
            if not is_known(word):
                near = {*texts, *concepts.similar(word, most, JOINER), *features.similar(word, most)} - {features[0]}
                found.append((word, difflib.get_close_matches(word, near, most)))
        return [(word, near) for word, near in found if near]

    def session(
        self,
        prompt: str,
        *,
        client: Client | None = None,
        max_tokens: int | None = None,
        temperature: float | None = None,
        seed: int | None = None,
        explain: bool | None = None,
        options: GenerationOptions | None = None,
        **keywords: Any,
    ) -> PromptSession:
        """Return the continuation of a prompt token by token, as an iterator; see `generate` and `sessions`.

        Parameters
        ----------
        prompt, max_tokens, temperature, seed, options
            See `generate`.
        client : Client, optional
            As of `sessions`.
        explain : bool, optional
            Whether tokens name the connections that caused them; by default they do not.
        **keywords
            Fields of `options`, and of the options within these, by their names.

        Returns
        -------
        PromptSession
            An iterator of `GeneratedToken`, and a context manager.

        Raises
        ------
        OptionError
            If the options do not fit the network.
        PromptError
            From the iterator, if the prompt cannot be continued.
        """
        from giaann_dask.models.generation_options import BatchOptions
        from giaann_dask.predict.generation import PromptSession

        explained = bool(explain) if options is None else explain
        wanted = _generation_options(options, max_tokens, temperature, seed, explained)
        return PromptSession(self.sessions([prompt], client=client, options=wanted, batch=BatchOptions(slots=1)))

    def check_claims(
        self,
        claims: str | Path | Iterable[Claim | Mapping[str, Any]],
        *,
        client: Client | None = None,
        least_value: float | None = None,
        options: GenerationOptions | None = None,
        **keywords: Any,
    ) -> ClaimReport:
        """Return the outcomes of claims: justified, right or wrong without support, hallucinated, or abstained.

        Parameters
        ----------
        claims : str, Path or iterable of Claim or mapping
            A file of JSON lines, or the claims; see `giaann_dask.predict.claims.Claim`.
        client : Client, optional
            As of `sessions`.
        least_value : float, optional
            An answer whose first word has a lower activation, of profile ``contexts`` probability, counts as none.
            By default there is none only where nothing can be predicted.
        options : GenerationOptions, optional
            Options of the continuations; `max_tokens` follows from the answers.
        **keywords
            Fields of `options`, and of the options within these, by their names.

        Raises
        ------
        GiaannError
            If the claims cannot be read, or the options do not fit the network.
        """
        from giaann_dask.models.generation_options import GenerationOptions
        from giaann_dask.predict.claims import as_claims, report_claims, tokens_of_answers

        asked, subwords = as_claims(claims), self.specification.tokens == "subwords"
        wanted = replace(options or GenerationOptions(), reasons=0, max_tokens=tokens_of_answers(asked, subwords))
        with self.sessions([claim.prompt for claim in asked], client=client, options=wanted) as events:
            return report_claims(asked, events, least_value=least_value, subwords=subwords, commit=self.commit)

    @attempt()
    def sessions(
        self,
        prompts: Iterable[str],
        *,
        client: Client | None = None,
        options: GenerationOptions | None = None,
        batch: BatchOptions | None = None,
        **keywords: Any,
    ) -> Sessions:
        """Return the continuations of many prompts, advanced together, as an iterator.

        The results are the same as for single prompts.

        Parameters
        ----------
        prompts : iterable of str
            Texts to continue; read as slots become free.
        client : Client, optional
            The current client by default; the workers of its cluster store the network. Where there is none, the
            network is read into this process, once for this object.
        options : GenerationOptions, optional
            Options of all continuations; without any, no connections are named.
        batch : BatchOptions, optional
            How many prompts advance together.
        **keywords
            Fields of `options` and `batch`, and of the options within these, by their names.

        Raises
        ------
        OptionError
            If the options do not fit the network, or the prompts are a table or a mapping.
        """
        from giaann_dask.models.generation_options import GenerationOptions
        from giaann_dask.predict.generation import Sessions
        from giaann_dask.text.memory_inputs import is_table

        if isinstance(prompts, str) or is_table(prompts):
            raise OptionError(f"prompts is of type {type(prompts).__name__}", "a list of texts")
        wanted = options or GenerationOptions(reasons=0)
        opened = self._open(client, wanted)
        return Sessions(opened, prompts, options=wanted, batch=batch, network=str(self.path))

    def _open(self, client: Client | None, options: GenerationOptions) -> Predictor:
        """Open the network on a cluster or in this process, once for each client and kind of rows."""
        from giaann_dask.models import model_of

        used = current_client() if client is None else require_synchronous(client)
        key = None if used is None else (used.id, options.rows, options.reads_strengths)
        opened = self._opened.get(key)
        if opened is None or opened.lost():
            from giaann_dask.diagnostics.monitoring.reporter import reporter_of

            observer = ignore if used is None else reporter_of(used)
            model = model_of(self.specification)
            opened = model.open(self._reader, client=used, options=options, observer=observer)
            self._opened[key] = opened
        return opened

    def persist(self, client: ClientLike | None = None) -> Network:
        """Keep the runs of the commit in the memory of a cluster's workers, for every client, until `unpersist`.

        Each region is held by its owner. Owners are assigned by memory, and reassigned when workers join or leave; data
        lost with a worker are read again. Commands on this cluster use these runs instead of the store, and their
        commits replace this one.

        Parameters
        ----------
        client : Client, cluster or str, optional
            Of the cluster; the current client by default.

        Returns
        -------
        Network
            This one.

        Raises
        ------
        ClusterError
            If the cluster does not respond in time.
        StoreUnsharedError
            If a worker cannot access the network.
        """
        from giaann_dask.training.committing import persist_commit

        with use_client(client) as used, attempt():
            persist_commit(used, self._reader)
        return self

    def unpersist(self, client: ClientLike | None = None) -> bool:
        """Let workers release the runs that `persist` keeps.

        Parameters
        ----------
        client : Client, cluster or str, optional
            Of the cluster; the current client by default.

        Returns
        -------
        bool
            Whether any commit of the network was kept.
        """
        from giaann_dask.training.committing import unpersist_network

        self._prompt_opening = None
        with use_client(client) as used:
            return unpersist_network(used, str(self.path))

    def table(self, observer: Observer = ignore) -> ConnectionTable:
        """Return all connections as coordinate arrays, in this process's memory.

        Parameters
        ----------
        observer : callable, optional
            Called with every event.

        Returns
        -------
        ConnectionTable

        Raises
        ------
        OptionError
            If the network is of profile ``contexts``, which has no columns.
        """
        if not self.specification.traits.columns:
            received = f"columns of a network of profile {self.specification.profile}"
            raise OptionError(received, "a model of columns, such as v2", "use export for its counts")
        from giaann_dask.models.columns.export import connection_table

        return connection_table(self._reader, observer)

    @property
    def columns(self) -> Columns:
        """Concept columns by concept, as a lazy mapping."""
        from giaann_dask.api.columns import Columns

        if self._columns is None:
            self._columns = Columns(self._reader)
        return self._columns

    def __getitem__(self, concept: str) -> Column:
        """Return a concept column; see `columns`."""
        return self.columns[concept]

    def __iter__(self) -> Iterator[str]:
        """Return an iterator of the concepts, in the order of their columns."""
        return iter(self.columns)

    def __len__(self) -> int:
        """Return the number of columns."""
        return len(self.columns)

    def __bool__(self) -> bool:
        """Return True: a network without columns is a network, too."""
        return True

    # Two networks are not compared by reading their columns.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def to_dask_dataframe(self, *, names: bool = True) -> dd.DataFrame:
        """Return all connections as a Dask data frame with a partition for each region; nothing is gathered.

        A partition is computed by the worker that has its region in memory, else by one that reads it from the store.

        Parameters
        ----------
        names : bool
            Whether to add the names of concepts and features as pyarrow strings, for which each partition reads the
            dictionaries. Of the sample text a connection takes 95 bytes of memory with them, 30 without.

        Returns
        -------
        dask.dataframe.DataFrame
            Columns as of `Column.to_pandas`; rows within a region in the order of `table`. Of profile ``contexts``
            counts of contexts: ``context``, ``target``, ``count`` (int64) and ``kind`` (int8).

        Raises
        ------
        MissingDependencyError
            If the extra ``dataframe`` is not installed.
        """
        from giaann_dask.api.columns import lazy_frame, lazy_regions

        return lazy_frame(self._reader, lazy_regions(self._reader), names)

    def to_dask_array(self) -> da.Array:
        """Return all connections as a Dask array of records with a chunk for each region; see `to_dask_dataframe`.

        Returns
        -------
        dask.array.Array
            Shape ``(connections,)``; its dtype has the fields of an export.
        """
        from giaann_dask.api.columns import lazy_records, lazy_regions, region_lengths

        return lazy_records(self._reader, lazy_regions(self._reader), region_lengths(self._reader))

    def zarr_store(self) -> IcechunkStore:
        """Return the Zarr store of the commit, read-only: ``zarr.open(network.zarr_store(), mode="r")``."""
        return self._reader.zarr_store()

    def export(
        self, path: str | Path, observer: Observer = ignore, *, compression: Compression = "default"
    ) -> Exported:
        """Write connections as coordinate arrays, and dictionaries and neurons to files next to them.

        Of profile ``contexts`` counts of contexts, words, and how often each of these occurs; or its n-gram model
        alone, as an ARPA file.

        Parameters
        ----------
        path : str or Path
            File that ends with ``.npz`` or ``.parquet``, or Zarr group that ends with ``.zarr``; of profile
            ``contexts`` also ``.arpa`` or ``.arpa.gz``.
        observer : callable, optional
            Notified of progress.
        compression : {"default", "none"}
            Deflate for ``.npz`` and ``.gz``, Zstandard for ``.parquet`` and ``.zarr``; or none.

        Returns
        -------
        Exported
            Paths of the files; of an ARPA file the first alone.

        Raises
        ------
        OptionError
            If the file ends with a suffix that only other models write.
        """
        from giaann_dask.models.exporting import export_network

        return export_network(self._reader, path, observer, compression)

    def digest(self) -> str:
        """Return the SHA-256 of the content of an export; see `giaann_dask.store.export.digest_of_contents`."""
        from giaann_dask.models.exporting import digest_of

        return digest_of(self._reader)

    def draw(self, concepts: Sequence[str] = (), *, options: DrawOptions | None = None, **keywords: Any) -> Figure:
        """Return a picture of some concept columns and their connections; `pictures` has all other kinds.

        Parameters
        ----------
        concepts : sequence of str
            Concepts to draw; by default those of `options`.
        options : DrawOptions, optional
            All options.
        **keywords
            Fields of `options` by their names.

        Returns
        -------
        matplotlib.figure.Figure

        Raises
        ------
        OptionError
            If the network has no such concept, or no columns.
        """
        from giaann_dask.diagnostics.pictures.draw_options import DrawOptions

        return self.pictures.draw(replace(options or DrawOptions(), concepts=tuple(concepts)) if concepts else options)

    @property
    def pictures(self) -> Pictures:
        """Pictures in all colours, as pages, densities and animations; see `diagnostics.pictures`."""
        from giaann_dask.diagnostics.pictures import Pictures

        return Pictures(self._reader)

    def report(
        self,
        evaluate: Inputs = (),
        *,
        client: ClientLike | None = None,
        options: EvaluationOptions | None = None,
        text: TextOptions | None = None,
        observer: Observer = ignore,
        **keywords: Any,
    ) -> NetworkReport:
        """Return a report of sizes, growth, degrees, strengths, hubs, regions, drawings and accuracy.

        Parameters
        ----------
        evaluate : str, Path, Files or iterable of texts
            Text to predict; without it the page has no accuracy.
        client : Client, cluster or str, optional
            Its cluster counts every region in a task; the current client by default. Without a client, regions are
            counted in this process, one by one.
        options : EvaluationOptions, optional
            How much of the text is read, and rules of inference; of profile ``contexts`` its limits alone count.
        text : TextOptions, optional
            How it is tagged.
        observer : callable, optional
            Called with every event.
        **keywords
            Fields of `options` and `text`, and of the options within these, by their names.

        Returns
        -------
        NetworkReport
            Displayed in notebooks; ``save`` writes it.
        """
        from giaann_dask.api.texts import as_sources
        from giaann_dask.diagnostics.network_report.page import report_network

        found: EvaluationReport | None = None
        if inputs := as_sources(evaluate):
            with _client_or_process(client) as used:
                found = self.evaluate(
                    inputs, client=used, options=options, text=text, progress=False, observer=observer
                )
        if client is None and current_client() is None:
            return report_network(self._store, self._reader, client=None, evaluation=found)
        with use_client(client) as used, attempt():
            return report_network(self._store, self._reader, client=used, evaluation=found)

    def summary(self) -> Summary:
        """Return the lines that represent the network."""
        manifest = self.manifest
        rows = (
            ("commit", self.commit),
            ("sequences", f"{manifest.trained:,} trained of {manifest.sequences:,}"),
            ("concepts", f"{manifest.saved_concepts:,}"),
            ("features", f"{manifest.saved_features:,}"),
            ("connections", f"{manifest.connections:,}"),
            ("segments", str(manifest.specification.segments)),
            *([("pruned", f"below strength {self.pruned_below:g}")] if self.pruned_below else []),
        )
        return Summary(f"Network {self.path}", rows)


@contextmanager
def _client_or_process(client: ClientLike | None) -> Iterator[Client]:
    """Provide the client of a call, or where there is none, one that runs tasks in this process."""
    if client is None and current_client() is None:
        from giaann_dask.cluster import ClusterOptions

        with connect(options=ClusterOptions(workers=0)) as own:
            yield own
    else:
        with use_client(client) as used:
            yield used


def _generation_options(
    options: GenerationOptions | None,
    max_tokens: int | None,
    temperature: float | None,
    seed: int | None,
    explain: bool | None,
) -> GenerationOptions:
    """Return options with the fields that a call names instead of them."""
    from giaann_dask.models.generation_options import GenerationOptions

    wanted = options or GenerationOptions()
    if temperature is not None:
        wanted = replace(wanted, sampling=replace(wanted.sampling, temperature=temperature))
    if seed is not None:
        wanted = replace(wanted, sampling=replace(wanted.sampling, seed=seed))
    if max_tokens is not None:
        wanted = replace(wanted, max_tokens=max_tokens)
    if explain is not None:
        wanted = replace(wanted, reasons=(wanted.reasons or GenerationOptions().reasons) if explain else 0)
    return wanted
