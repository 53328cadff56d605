"""Validate the options of scheduled jobs; the work is in `recurring` and `comparing`."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

from giaann_dask.api.text_options import TextOptions
from giaann_dask.cluster.cluster_options import ClusterOptions
from giaann_dask.errors import OptionError, require_at_least, require_option
from giaann_dask.models.generation_options import EvaluationOptions
from giaann_dask.registry import PROFILES, Profile
from giaann_dask.spec import Specification
from giaann_dask.training.training_options import TrainingOptions


@dataclass(frozen=True, kw_only=True)
class Measure:
    """Text to evaluate, and how it is read.

    Parameters
    ----------
    inputs : tuple of str
        Text that the network was not trained on.
    text : TextOptions
        How it is read.
    max_sequences : int, optional
        Sequences to read.

    Raises
    ------
    OptionError
        If that is none.
    """

    inputs: tuple[str, ...]
    text: TextOptions
    max_sequences: int | None = None

    def __post_init__(self) -> None:
        valid = self.max_sequences is None or self.max_sequences >= 1
        require_option(valid, "evaluate_sequences", self.max_sequences, "1 or more")

    def identity(self) -> str:
        """Return a hash of the text, how it is read and predicted; only those with the same can be compared."""
        from giaann_dask.text.reading import read_parts

        parts = read_parts(list(self.inputs), self.text.reading)
        rules = json.dumps([self.text.tagger or "lexicon", self.max_sequences, EvaluationOptions.protocol]).encode()
        return hashlib.blake2b(rules + b"".join(part.fingerprint() for part in parts), digest_size=8).hexdigest()


@dataclass(frozen=True, kw_only=True)
class NightlyOptions:
    """Inputs, checks and limits of a nightly training.

    Parameters
    ----------
    inputs : tuple of str
        Files, folders, globs, datasets or encoded corpora.
    network : Path
        Folder of the network, new or not.
    text : TextOptions
        How text is read.
    training : TrainingOptions
        Sizes and times of training; commits are deleted at the end of the run, by `keep_commits`.
    specification : Specification, optional
        Of a new network.
    evaluation : Measure, optional
        What to evaluate afterwards.
    least_top1 : float
        Minimum accuracy; below it the run fails, and no commit is deleted.
    settle_s : float
        Files that were changed within this time are left for the next run: an incomplete file would be a different text
        later, and would be counted twice in part.
    skip_unreadable : bool
        Whether files that cannot be read are skipped; otherwise they end the run before it trains.
    keep_commits : int, optional
        Commits to keep; all by default.
    max_seconds : float, optional
        Training time in seconds after which the job commits and stops; the next run continues.

    Raises
    ------
    OptionError
        If a number is out of range.
    """

    inputs: tuple[str, ...]
    network: Path
    text: TextOptions = field(default_factory=TextOptions)
    training: TrainingOptions = field(default_factory=TrainingOptions)
    specification: Specification | None = None
    evaluation: Measure | None = None
    least_top1: float = 0.0
    settle_s: float = 60.0
    skip_unreadable: bool = False
    keep_commits: int | None = None
    max_seconds: float | None = None

    def __post_init__(self) -> None:
        require_at_least(1, self, "keep_commits")
        require_option(0 <= self.least_top1 <= 1, "least_top1", self.least_top1, "a share from 0 to 1")
        require_option(self.settle_s >= 0, "settle_s", self.settle_s, "seconds, 0 or more")
        valid = self.max_seconds is None or self.max_seconds > 0
        require_option(valid, "max_seconds", self.max_seconds, "seconds, more than 0")


@dataclass(frozen=True, kw_only=True)
class WeeklyOptions:
    """Text, report folder and tolerance of a weekly evaluation.

    Parameters
    ----------
    network : Path
        Folder of the network.
    evaluation : Measure
        What to evaluate.
    reports : Path
        Folder for the pages.
    tolerance : float
        By how much top-1, a share from 0 to 1, may fall.
    accept : bool
        Whether to accept the accuracy as the new reference, however far it fell.
    commit : str, optional
        The commit; the last one by default.

    Raises
    ------
    OptionError
        If the tolerance is out of range.
    """

    network: Path
    evaluation: Measure
    reports: Path
    tolerance: float = 0.01
    accept: bool = False
    commit: str | None = None

    def __post_init__(self) -> None:
        from giaann_dask.storage import require_local

        require_local(self.reports)
        require_option(0 <= self.tolerance <= 1, "tolerance", self.tolerance, "a share from 0 to 1")


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions:
    """Text, sizes and profiles of a comparison, and where everything is written.

    Parameters
    ----------
    train, evaluate : tuple of str
        Inputs to train on, and others to evaluate on.
    sizes : tuple of int
        Sentences to train on.
    profiles : tuple of {"v1", "v2", "contexts"}
        Names of profiles.
    tagger : str
        Tagger of words, for profiles v1 and v2.
    seed_tokens : int
        Tokens of each sentence that are not predicted.
    output : Path
        Folder for networks, tables and plot.
    where : ClusterOptions
        Where tasks run.

    Raises
    ------
    OptionError
        If a profile is unknown.
    InputMissingError
        If there is no such input.
    """

    train: tuple[str, ...]
    evaluate: tuple[str, ...]
    sizes: tuple[int, ...] = (1_000, 100_000_000)
    profiles: tuple[Profile, ...] = ("contexts", "v1", "v2")
    tagger: str = "gold"
    seed_tokens: int = 8
    output: Path
    where: ClusterOptions

    def __post_init__(self) -> None:
        unknown = [name for name in self.profiles if name not in PROFILES]
        if unknown:
            raise OptionError(f"the profile {unknown[0]!r}", f"{', '.join(PROFILES)}", "name some of these")
        from giaann_dask.text.inputs import resolve_inputs

        resolve_inputs([*self.train, *self.evaluate])

    def networks(self) -> list[tuple[Profile, int]]:
        """Return the profile and the size of each network."""
        return [(name, size) for size in self.sizes for name in self.profiles]
