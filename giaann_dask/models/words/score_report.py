"""Report how probable a text is to a network: its options, its figures, and n-gram models beside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from giaann_dask.cluster import result, task_key
from giaann_dask.encoding.stream import EncodingStream, StreamOptions
from giaann_dask.errors import require_at_least, require_option
from giaann_dask.events import BlockEncoded, Observer, SequencesEvaluated
from giaann_dask.keywords import names_keywords
from giaann_dask.lazy import import_optional
from giaann_dask.models.generation_options import option_pairs
from giaann_dask.models.results import EvaluationReport
from giaann_dask.models.words.scores import MOST_RANK, ScoreSummary, TextScores, join_scores
from giaann_dask.models.words.stream import stream_tokens
from giaann_dask.representations import Summary, finite, format_seconds
from giaann_dask.text.memory_inputs import MemoryInput
from giaann_dask.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from distributed import Client, Future

    from giaann_dask.models.base import EvaluatedText
    from giaann_dask.models.generation_options import EvaluationOptions

# The more, the fewer rows are read for several tasks.
TOKENS_PER_TASK = 1 << 16
# Words of the longest n-gram of the baselines.
MAXIMUM_ORDER = 5
NGRAM = "ngram"


@names_keywords
@dataclass(frozen=True, kw_only=True)
class ScoringOptions:
    """Options of scoring.

    Parameters
    ----------
    max_sequences : int, optional
        Sentences to read.
    first_sequence : int
        The first of them, counted from 0.
    baseline : {"ngram"}, optional
        Also score n-gram models of the same counts.
    tokens_per_task : int
        Tokens of one task; the figures do not depend on it.
    top_k : tuple of int
        Values of k: top-k is the share of tokens that are among the k most probable words.
    model_options : mapping of str to Any, or pairs of these
        Options of a model of another package that only its predictions read, instead of those of the network.

    Raises
    ------
    OptionError
        If there is no such baseline, a task would have no tokens, or k or a limit is out of range.

    Examples
    --------
    >>> ScoringOptions(baseline="ngram").baseline
    'ngram'
    """

    max_sequences: int | None = None
    first_sequence: int = 0
    baseline: Literal["ngram"] | None = None
    tokens_per_task: int = TOKENS_PER_TASK
    top_k: tuple[int, ...] = (1,)
    model_options: Mapping[str, Any] | tuple[tuple[str, Any], ...] = ()

    @classmethod
    def limits_of(cls, options: EvaluationOptions) -> ScoringOptions:
        """Return the limits of an evaluation; the other options are those of networks of columns."""
        names = ("max_sequences", "first_sequence", "top_k", "model_options")
        return cls(**{name: getattr(options, name) for name in names})

    def __post_init__(self) -> None:
        object.__setattr__(self, "model_options", option_pairs(self.model_options))
        require_at_least(1, self, "max_sequences")
        require_at_least(0, self, "first_sequence")
        require_option(self.baseline in (None, NGRAM), "baseline", self.baseline, NGRAM)
        require_option(self.tokens_per_task >= 1, "tokens_per_task", self.tokens_per_task, "1 or more")
        ranks = bool(self.top_k) and all(1 <= k <= MOST_RANK for k in self.top_k)
        require_option(ranks, "top_k", self.top_k, f"numbers from 1 to {MOST_RANK}")


@dataclass(frozen=True, eq=False)
class Baseline:
    """N-gram models on some tokens, made of the same counts of the same text.

    Attributes
    ----------
    backoff : ndarray
        At which tokens plain backoff is right, bool, shape ``(tokens,)``.
    smoothed : TextScores
        Of the modified smoothing of Kneser and Ney.
    pooled : TextScores or None
        Of profile ``contexts`` on these tokens, where the baseline does not stand beside it.
    top_k : tuple of int
        Values of k for which the shares of the models with probabilities are shown.
    """

    backoff: npt.NDArray[np.bool_]
    smoothed: TextScores
    pooled: TextScores | None = None
    top_k: tuple[int, ...] = (1,)

    def matches(self, seed_tokens: int) -> int:
        """Return how many tokens after the first ones of each sentence plain backoff predicts."""
        return int(self.backoff[self.smoothed.place >= seed_tokens].sum())

    def as_dict(self, seed_tokens: int) -> dict[str, Any]:
        """Return JSON-ready figures of the tokens after the first ones of each sentence."""
        summary, matches = self.smoothed.summary(seed_tokens), self.matches(seed_tokens)
        backoff = {"tokens": summary.tokens, "matches": matches, "top1": matches / summary.tokens}
        found = {"backoff": backoff, "kneser_ney": summary.as_dict() | self._shares(self.smoothed, seed_tokens)}
        if self.pooled is not None:
            found["contexts"] = self.pooled.summary(seed_tokens).as_dict() | self._shares(self.pooled, seed_tokens)
        return found

    def _shares(self, scores: TextScores, seed_tokens: int) -> dict[str, Any]:
        """Return top-k of some scores by k; none where k is 1 alone."""
        shares = {str(k): scores.top_k(k, seed_tokens) for k in self.top_k}
        return {"top_k": shares} if [*shares] != ["1"] else {}

    def _top(self, scores: TextScores, seed_tokens: int) -> str:
        return ", ".join(f"top-{k} {scores.top_k(k, seed_tokens):.4f}" for k in sorted({1, *self.top_k}))

    def lines(self, seed_tokens: int) -> list[str]:
        r"""Return these figures for a person, one line each.

        Examples
        --------
        >>> one = np.ones(1)
        >>> nbytes, place, document, rank = np.array([[4], [8], [0], [0]])
        >>> scores = TextScores(-one, one > 0, nbytes, place, document, one > 0, rank)
        >>> print("\n".join(Baseline(one > 0, scores).lines(8)))
        backoff 5-gram     top-1 1.0000 of 1 tokens
        Kneser-Ney 5-gram  top-1 1.0000 of 1 tokens, perplexity 2.7, 0.361 bits per byte
        """
        summary = self.smoothed.summary(seed_tokens)
        of = f"of {summary.tokens:,} tokens"
        lines = [
            f"backoff {MAXIMUM_ORDER}-gram     top-1 {self.matches(seed_tokens) / summary.tokens:.4f} {of}",
            f"Kneser-Ney {MAXIMUM_ORDER}-gram  {self._top(self.smoothed, seed_tokens)} {of}, {summary.costs}",
        ]
        if self.pooled is not None:
            found = self.pooled.summary(seed_tokens)
            top = self._top(self.pooled, seed_tokens)
            lines.append(f"profile contexts       {top} of {found.tokens:,} tokens, {found.costs}")
        return lines


@dataclass(frozen=True, repr=False)
class ScoreReport(EvaluationReport):
    """Probability of a text by a network of profile ``contexts``.

    Attributes
    ----------
    sequences : int
        Sentences.
    seed_tokens : int
        Tokens at the beginning of each that are given, not predicted.
    predicted : ScoreSummary
        Figures of the tokens after these.
    every : ScoreSummary
        Figures of every token.
    seconds : float
        Time from reading the text to the result, compiling included, without the start of workers.
    commit : str
        The commit that was evaluated.
    scores : TextScores
        Of each token, in order.
    baseline : Baseline or None
        N-gram models, where asked for.
    top_k : dict of int to float
        Share of the tokens after the seed tokens that are among the k most probable words, by k.
    record_count : int
        Records that were read, those without a token among them; of files without records, the files.
    index : pandas.Index, or that of Dask, or None
        Labels of the records of a data frame.
    """

    sequences: int
    seed_tokens: int
    predicted: ScoreSummary
    every: ScoreSummary
    seconds: float
    commit: str
    scores: TextScores = field(compare=False)
    baseline: Baseline | None = field(default=None, compare=False)
    top_k: dict[int, float] = field(default_factory=dict)
    record_count: int = 0
    index: Any = field(default=None, compare=False)

    @classmethod
    def of(
        cls,
        scores: TextScores,
        text: EvaluatedText,
        options: ScoringOptions,
        read: ReadText,
        seconds: float,
        baseline: Baseline | None = None,
    ) -> ScoreReport:
        """Return the report of the scores of a text."""
        seed = text.reader.manifest().specification.seed_tokens
        top_k = {k: scores.top_k(k, seed) for k in sorted({1, *options.top_k})}
        figures = scores.summary(seed), scores.summary()
        # Reading is ahead of a limit.
        last = int(scores.document.max(initial=-1)) + 1
        counted = last if options.max_sequences is not None else max(read.documents, last)
        only = text.inputs[0] if len(text.inputs) == 1 else None
        index = only.index if isinstance(only, MemoryInput) else None
        made = read.sequences, seed, *figures, seconds, text.reader.commit, scores, baseline, top_k
        return cls(*made, counted, index)

    @property
    def top1(self) -> float:
        """Share of the tokens after the seed tokens that are predicted right."""
        return self.predicted.top1

    @property
    def perplexity(self) -> float:
        """Perplexity of the tokens after the seed tokens: e to the mean negative log-probability; may be infinite."""
        return self.predicted.perplexity

    @property
    def records(self) -> list[ScoreSummary | None]:
        """Figures of every token of each record, in the order of the input; None for one without a token.

        Equal texts are records of their own. With `ScoringOptions.max_sequences`, up to the last record that was
        scored.
        """
        sums = self.scores.by_record(self.record_count)
        names, columns = [*sums], zip(*(values.tolist() for values in sums.values()), strict=True)
        rows = (dict(zip(names, row, strict=True)) for row in columns)
        return [ScoreSummary(**row) if row["tokens"] else None for row in rows]

    def frame(self, seed_tokens: int = 0) -> Any:
        """Return figures of each record as a data frame of pandas, with the index of the frame that was scored.

        Parameters
        ----------
        seed_tokens : int
            Tokens at the beginning of each sentence that are left out; `seed_tokens` of the report for those that its
            perplexity leaves out.

        Returns
        -------
        pandas.DataFrame
            Columns ``tokens`` and ``unknown`` (int64), ``log_probability`` (natural logarithm), ``perplexity`` and
            ``bits_per_byte`` (float64; NaN for a record without a token to score).

        Raises
        ------
        MissingDependencyError
            If pandas is not installed.
        """
        pandas = import_optional("pandas", "dataframe")
        index = _computed(self.index)
        count = self.record_count if index is None else len(index)
        sums = self.scores.by_record(count, seed_tokens)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            scored = np.where(sums["tokens"] > 0, sums["nats"], np.nan)
            perplexity, bits = np.exp(scored / sums["tokens"]), scored / math.log(2) / sums["nbytes"]
        counts = {name: sums[name] for name in ("tokens", "unknown")}
        figures = {"log_probability": -scored, "perplexity": perplexity, "bits_per_byte": bits}
        return pandas.DataFrame(counts | figures, index=index)

    @property
    def prediction_tokens(self) -> int:
        """Tokens after the seed tokens, of which `top1` is a share."""
        return self.predicted.tokens

    @property
    def tokens_per_second(self) -> float:
        """Scored tokens a second, reading and tables included."""
        return self.every.tokens / max(self.seconds, 1e-9)

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return {
            "sequences": self.sequences,
            "seed_tokens": self.seed_tokens,
            "prediction_tokens": self.predicted.tokens,
            "prediction_matches": self.predicted.matches,
            "top1": self.top1,
            "protocol": "left-to-right",
            "top_k": {str(k): share for k, share in self.top_k.items()},
            "perplexity": finite(self.predicted.perplexity),
            "bits_per_byte": self.predicted.bits_per_byte,
            "unknown": self.predicted.unknown,
            "every_token": self.every.as_dict(),
            "baseline": None if self.baseline is None else self.baseline.as_dict(self.seed_tokens),
            "seconds": self.seconds,
            "tokens_per_second": self.tokens_per_second,
            "commit": self.commit,
        }

    def summary(self) -> Summary:
        """Return the lines that represent the evaluation."""
        predicted, every = self.predicted, self.every
        rows = (
            ("protocol", "left-to-right"),
            ("top-1", f"{predicted.top1:.4f}"),
            ("right", f"{predicted.matches:,} of {predicted.tokens:,}"),
            ("perplexity", predicted.shown_perplexity),
            ("bits per byte", f"{predicted.bits_per_byte:.3f}"),
            ("every token", every.costs),
            ("tokens", f"{every.tokens:,}, {self.tokens_per_second:,.0f} a second"),
            ("seconds", format_seconds(self.seconds)),
            *((f"top-{k}", f"{share:.4f}") for k, share in self.top_k.items() if k != 1),
            *(("n-grams", line) for line in self.lines()),
        )
        return Summary("Evaluation", rows)

    def shown(self, verbose: bool = False) -> dict[str, Any]:
        """Return the figures that a command prints."""
        names = ["sequences", "prediction_tokens", "prediction_matches", "top1"]
        names += [*(["top_k"] if len(self.top_k) > 1 else []), "protocol"]
        values = self.as_dict()
        # JSON has no infinity.
        values["perplexity"], values["every_token"]["perplexity"] = self.predicted.perplexity, self.every.perplexity
        return {name: values[name] for name in (*names, "perplexity", "bits_per_byte", "every_token", "seconds")} | {
            "tokens_per_second": self.tokens_per_second
        }

    def lines(self) -> list[str]:
        """Return the figures of the n-gram models as readable lines; none if these were not requested."""
        return [] if self.baseline is None else self.baseline.lines(self.seed_tokens)


class ReadText(NamedTuple):
    """A `TokenStream` on the cluster, and the sentences and documents of its text."""

    stream: Future
    sequences: int
    documents: int


def read_text(text: EvaluatedText, options: ScoringOptions) -> ReadText:
    """Return the tokens of a text on the cluster, and the numbers of its sentences and documents."""
    limits = StreamOptions(max_sequences=options.max_sequences, first_sequence=options.first_sequence)
    stream = EncodingStream(text.client, Vocabulary(), text.sources, limits)
    blocks = []
    for block in stream.blocks(text.inputs):
        blocks.append(block.encoded)
        text.observer(BlockEncoded(block.mapping.sequences, block.characters, block.read))
    key = task_key("stream", [block.key for block in blocks])
    return ReadText(text.client.submit(stream_tokens, blocks, key=key), stream.counted, next(stream.numbers))


def tokens_of(client: Client, stream: Future) -> int:
    """Return how many tokens a stream on the cluster has."""
    tokens: int = result(client.submit(len, stream, key=task_key("len", stream.key)))
    return tokens


def score_spans(submit: Callable[[tuple[int, int]], Future], tokens: int, size: int, observer: Observer) -> TextScores:
    """Return the scores of all tokens, of which a task scores so many; `submit` submits that of a span."""
    futures = [submit((begin, min(begin + size, tokens))) for begin in range(0, tokens, size)]
    parts = []
    for future in futures:
        part: TextScores = result(future)
        parts.append(part)
        observer(SequencesEvaluated(int((part.place == 0).sum()), int(part.matches.sum()), len(part.matches)))
    return join_scores(parts)


def _computed(index: Any) -> Any:
    """Return an index; that of a Dask collection is computed by the current client, or without one by threads."""
    if not hasattr(index, "compute"):
        return index
    from distributed import get_client

    try:
        get_client()
    except ValueError:
        return index.compute(scheduler="threads")
    return index.compute()
