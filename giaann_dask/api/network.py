"""Evaluate, generate from, draw and export a trained network at one commit.

`Network` fills in the choices that a user leaves open; the work is done by the folders below. Modules that predict are
imported by the methods that predict, so that inspecting a network does not import PyTorch. Training is in `training`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distributed import Client

from giaann_dask.api.cluster import connect
from giaann_dask.api.texts import Inputs, TextOptions, names, sources_of
from giaann_dask.cluster import ClusterOptions, attempt
from giaann_dask.diagnostics.monitoring.reporter import report_events, reporter_of
from giaann_dask.errors import OptionError
from giaann_dask.events import Observer, ignore
from giaann_dask.representations import Summarised, Summary, format_count
from giaann_dask.spec import Specification
from giaann_dask.storage import bytes_on_disk
from giaann_dask.store.connection_table import ConnectionTable
from giaann_dask.store.export import Exported, connection_table, export_network
from giaann_dask.store.manifest import Manifest
from giaann_dask.store.network_store import CommitReader, NetworkStore
from giaann_dask.text.corpus import EncodedCorpus, is_corpus
from giaann_dask.text.ever_pos import EverPos

if TYPE_CHECKING:
    import dask.array as da
    import dask.dataframe as dd
    from icechunk import IcechunkStore
    from matplotlib.figure import Figure

    from giaann_dask.api.columns import Column, Columns
    from giaann_dask.diagnostics.network_report.page import NetworkReport
    from giaann_dask.diagnostics.pictures.gallery import Pictures
    from giaann_dask.diagnostics.pictures.options import DrawOptions
    from giaann_dask.inference.batch import BatchOptions
    from giaann_dask.inference.best.evaluation import Baseline, ScoreReport, ScoringOptions
    from giaann_dask.inference.continuation import Continuation, GenerationOptions
    from giaann_dask.inference.evaluation.evaluation import EvaluationOptions, EvaluationReport
    from giaann_dask.inference.token_events import ContinuationStream, OpenNetwork, PromptSession


class Network(Summarised):
    """A trained network at one commit.

    Parameters
    ----------
    path : str or Path
        Folder of the network.
    commit : str, optional
        Identity of a commit; the last one by default.

    Raises
    ------
    StoreMissingError, StoreFormatError, StoreDamagedError
        If there is no such network or commit, or if it cannot be read.

    Examples
    --------
    >>> import tempfile
    >>> import giaann_dask as gd
    >>> from giaann_dask.data import sample_text
    >>> with gd.connect(workers=0) as client:
    ...     path = gd.train(sample_text(), Path(tempfile.mkdtemp()) / "village", client=client)[0].path
    >>> gd.Network(path).generate("The old miller carried the flour").text
    'to the baker .'
    """

    def __init__(self, path: str | Path, commit: str | None = None) -> None:
        self._store = NetworkStore(path)
        self.path = self._store.path
        self._reader: CommitReader = self._store.open(self._store.head() if commit is None else commit)
        self._opened: OpenNetwork | None = None
        self._columns: Columns | None = None

    @property
    def commit(self) -> str:
        """Identity of the commit."""
        return self._reader.commit

    @property
    def manifest(self) -> Manifest:
        """Counts and sizes."""
        return self._reader.manifest()

    @property
    def specification(self) -> Specification:
        """Specification of the network: the numbers that define training."""
        return self.manifest.specification

    def commits(self) -> list[tuple[str, str]]:
        """Return identity and message of every commit, the last one first."""
        return self._store.commits()

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
            "bytes_on_disk": bytes_on_disk(self.path),
            "bytes_in_memory": sum(run.nbytes for run in manifest.runs),
            "commit": self.commit,
            "commits": len(self.commits()),
            "specification": manifest.specification.as_dict(),
            **({} if tokenizer is None else {"tokenizer": tokenizer.describe()}),
        }

    def require_fit(self, options: EvaluationOptions | GenerationOptions) -> None:
        """Raise an `OptionError` when options do not fit this network; no cluster is needed for it."""
        from giaann_dask.inference.continuation import GenerationOptions
        from giaann_dask.inference.profiles import fitting_rules

        if isinstance(options, GenerationOptions):
            options.require_fit(self.specification)
        else:
            fitting_rules(self.specification, options.inference)

    @attempt()
    def evaluate(
        self,
        inputs: Inputs,
        *,
        client: Client,
        options: EvaluationOptions | None = None,
        text: TextOptions | None = None,
        observer: Observer = ignore,
    ) -> EvaluationReport:
        """Return the accuracy on a text; see `giaann_dask.inference.evaluation.evaluation`.

        A network of profile ``best`` gives every word a probability: see `score`.
        """
        from giaann_dask.inference.evaluation.evaluation import EvaluationOptions, evaluate_network

        chosen = text or TextOptions()
        corpora = [EncodedCorpus(name) for name in names(inputs) if is_corpus(name)]
        # Accuracy by part of speech is reported where all corpora store parts of speech.
        tagged = all(corpus.attributes.get("parts_of_speech") for corpus in corpora)
        lexicon = self._reader.tokenizer() or self._reader.ever_pos()
        sources = sources_of(self.specification, chosen, lexicon, drop_short=True)
        sources = replace(sources, filter=replace(sources.filter, parts_of_speech=tagged))
        with report_events(client, observer) as reporting:
            return evaluate_network(
                client, self._reader, names(inputs), sources, options or EvaluationOptions(), reporting
            )

    @attempt()
    def score(
        self,
        inputs: Inputs,
        *,
        client: Client,
        options: ScoringOptions | None = None,
        text: TextOptions | None = None,
        observer: Observer = ignore,
    ) -> ScoreReport:
        """Return how probable a text is to a network of profile ``best``; see `best.evaluation`."""
        from giaann_dask.inference.best.evaluation import ScoringOptions, score_network

        if self.specification.has_columns:
            raise OptionError(
                f"probabilities of words from a network of profile {self.specification.profile}",
                "profile best",
                "use evaluate",
            )
        sources = sources_of(self.specification, text or TextOptions(), EverPos())
        with report_events(client, observer) as reporting:
            return score_network(client, self._reader, names(inputs), sources, options or ScoringOptions(), reporting)

    @attempt()
    def compare_ngrams(
        self,
        inputs: Inputs,
        training: Inputs,
        *,
        client: Client,
        options: ScoringOptions | None = None,
        text: TextOptions | None = None,
    ) -> Baseline:
        """Return n-grams, and the rules of profile ``best``, on the tokens that `evaluate` predicts.

        They are counted on the sequences that a network of profile ``v1`` or ``v2`` trains of the text
        `training`; a network of profile ``best`` has their counts (see `score`).
        """
        from giaann_dask.inference.best.evaluation import BaselineTexts, ScoringOptions, score_same_tokens

        spec, chosen = self.specification, text or TextOptions()
        if not spec.has_columns:
            raise OptionError("a training text for a network of profile best", "its own counts", "use score")
        lexicon = self._reader.tokenizer() or self._reader.ever_pos()
        read = [sources_of(spec, chosen, lexicon, drop_short=short) for short in (False, True)]
        texts = BaselineTexts(names(training), names(inputs), *read)
        return score_same_tokens(client, self._reader, texts, options or ScoringOptions())

    @attempt()
    def generate(
        self, prompt: str, *, client: Client | None = None, options: GenerationOptions | None = None
    ) -> Continuation:
        """Return the continuation of a prompt; without a client it runs in this process."""
        from giaann_dask.inference.continuation import GenerationOptions
        from giaann_dask.inference.registry import generate

        if client is not None:
            return generate(client, self._reader, prompt, options or GenerationOptions())
        with connect(options=ClusterOptions(workers=0)) as own:
            return generate(own, self._reader, prompt, options or GenerationOptions())

    @attempt()
    def session(
        self, prompt: str, *, client: Client | None = None, options: GenerationOptions | None = None
    ) -> PromptSession:
        """Return the continuation of a prompt token by token; see `sessions`."""
        from giaann_dask.inference.batch import BatchOptions
        from giaann_dask.inference.token_events import PromptSession

        return PromptSession(self.sessions([prompt], client=client, options=options, batch=BatchOptions(slots=1)))

    @attempt()
    def sessions(
        self,
        prompts: Iterable[str],
        *,
        client: Client | None = None,
        options: GenerationOptions | None = None,
        batch: BatchOptions | None = None,
    ) -> ContinuationStream:
        """Return the continuations of many prompts, advanced together, as an iterator.

        Without a client the network is read into this process, once for this object and commit; with one its
        workers store it. Each prompt is continued as it would be alone.
        """
        from giaann_dask.inference.continuation import GenerationOptions
        from giaann_dask.inference.sessions import Sessions

        wanted = options or GenerationOptions(reasons=0)
        return Sessions(self._open(client, wanted), prompts, options=wanted, batch=batch)

    def _open(self, client: Client | None, options: GenerationOptions) -> OpenNetwork:
        from giaann_dask.inference.registry import open_network

        if client is not None:
            return open_network(self._reader, client=client, options=options, observer=reporter_of(client))
        if self._opened is None:
            self._opened = open_network(self._reader, options=options)
        return self._opened

    def table(self, observer: Observer = ignore) -> ConnectionTable:
        """Return all connections as coordinate arrays, in this process's memory."""
        if not self.specification.has_columns:
            raise OptionError("columns of a network of profile best", "profile v1 or v2", "use export for its counts")
        return connection_table(self._reader, observer)

    @property
    def columns(self) -> Columns:
        """Concept columns by concept, as a mapping that reads what is asked for."""
        from giaann_dask.api.columns import Columns

        if self._columns is None:
            self._columns = Columns(self._reader)
        return self._columns

    def __getitem__(self, concept: str) -> Column:
        """Return a concept column; see `columns`."""
        return self.columns[concept]

    # Python would otherwise iterate over a network by asking for column 0, 1 and so on.
    __iter__ = None

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
            Columns as of `Column.to_pandas`; rows within a region in the order of `table`. Of profile ``best``
            counts of contexts: ``context``, ``target``, ``count`` (int64) and ``kind`` (int8).

        Raises
        ------
        MissingDependencyError
            If the extra ``dataframe`` is not installed.
        """
        from giaann_dask.api.frames import lazy_frame, lazy_regions

        return lazy_frame(self._reader, lazy_regions(self._reader), names)

    def to_dask_array(self) -> da.Array:
        """Return all connections as a Dask array of records with a chunk for each region; see `to_dask_dataframe`.

        Returns
        -------
        dask.array.Array
            Shape ``(connections,)``; its dtype has the fields of an export.
        """
        from giaann_dask.api.frames import lazy_records, lazy_regions, region_lengths

        return lazy_records(self._reader, lazy_regions(self._reader), region_lengths(self._reader))

    def zarr_store(self) -> IcechunkStore:
        """Return the Zarr store of the commit, read-only: ``zarr.open(network.zarr_store(), mode="r")``."""
        return self._reader.zarr_store()

    def export(self, path: str | Path, observer: Observer = ignore) -> Exported:
        """Write connections (``.npz``), dictionaries (``.json``) and neurons (``.neurons.npz``).

        Of profile ``best`` counts of contexts, words, and how often each of these occurs.
        """
        return export_network(self._reader, path, observer)

    def draw(self, concepts: Sequence[str] = (), *, options: DrawOptions | None = None) -> Figure:
        """Return a picture of some concept columns and their connections; `pictures` has all other kinds."""
        from giaann_dask.diagnostics.pictures.options import DrawOptions

        return self.pictures.draw(replace(options or DrawOptions(), concepts=tuple(concepts)) if concepts else options)

    @property
    def pictures(self) -> Pictures:
        """Pictures in all colours, as pages, densities and animations; see `diagnostics.pictures.gallery`."""
        from giaann_dask.diagnostics.pictures.gallery import Pictures

        return Pictures(self._reader)

    @attempt()
    def report(
        self,
        evaluate: Inputs = (),
        *,
        client: Client | None = None,
        options: EvaluationOptions | None = None,
        text: TextOptions | None = None,
        observer: Observer = ignore,
    ) -> NetworkReport:
        """Return a report of sizes, growth, degrees, strengths, hubs, regions, drawings and accuracy.

        Parameters
        ----------
        evaluate : str, Path or sequence of them
            Text to predict; without it the page has no accuracy.
        client : Client, optional
            Of a cluster on which every region is a task; without one they are counted here one by one.
        options : EvaluationOptions, optional
            How much of the text is read, and rules of inference; of profile ``best`` its limits alone count.
        text : TextOptions, optional
            How it is tagged.
        observer : callable, optional
            Called with every event.

        Returns
        -------
        NetworkReport
            Shows itself in notebooks; ``save`` writes it.
        """
        from giaann_dask.diagnostics.network_report.page import report_network
        from giaann_dask.inference.best.evaluation import ScoringOptions
        from giaann_dask.inference.evaluation.evaluation import EvaluationOptions

        found: EvaluationReport | ScoreReport | None = None
        if inputs := names(evaluate):
            chosen = options or EvaluationOptions()
            limits = {name: getattr(chosen, name) for name in ("maximum_sequences", "first_sequence")}
            with connect(options=ClusterOptions(workers=0)) if client is None else nullcontext(client) as used:
                if not self.specification.has_columns:
                    scoring = ScoringOptions(**limits)
                    found = self.score(inputs, client=used, options=scoring, text=text, observer=observer)
                else:
                    found = self.evaluate(inputs, client=used, options=chosen, text=text, observer=observer)
        return report_network(self._store, self._reader, client=client, evaluation=found)

    def summary(self) -> Summary:
        """Return the lines that represent the network."""
        manifest = self.manifest
        rows = (
            ("commit", self.commit),
            ("sequences", f"{format_count(manifest.trained)} trained of {format_count(manifest.sequences)}"),
            ("concepts", format_count(manifest.saved_concepts)),
            ("features", format_count(manifest.saved_features)),
            ("connections", format_count(manifest.connections)),
            ("segments", str(manifest.specification.segments)),
        )
        return Summary(f"Network {self.path}", rows)
