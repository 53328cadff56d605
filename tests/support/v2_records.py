"""Helpers of the tests of profile ``v2``: its golden files, and the reference's order of equal scores."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from giaann_dask.models.columns.state.inference_options import V2Options, settings
from giaann_dask.models.columns.state.session import FlagTable, PreparedSequence
from giaann_dask.runs.run import Run
from giaann_dask.spec import Specification
from support.conformance import golden_run, prepared, read_json

HERE = Path(__file__).resolve().parent.parent
SHARED = HERE.parent.parent / "shared" / "golden" / "v2"


def v2_folder(name: str) -> Path | None:
    """A golden folder: the one in the project, else the one beside the checkout, else None."""
    places = (HERE / "data" / "v2" / name, SHARED / name)
    return next((place for place in places if (place / "infer_train_target.jsonl.gz").is_file()), None)


@dataclass(frozen=True)
class V2Network:
    """What a session reads of the specification of a golden network."""

    branches: int
    last_segment: int
    seed_tokens: int = 8
    column_segments: int = 4
    feature_segments: int = 4

    def strengths(self, units: npt.NDArray[np.signedinteger]) -> npt.NDArray[np.float64]:
        return units / float(1 << 20)

    @classmethod
    def of(cls, folder: Path) -> Specification:
        """The specification of a golden folder; only v2_word_nolif has no soma."""
        lif = not folder.name.endswith("_nolif")
        return cast(Specification, cls(branches=1 if lif else 2, last_segment=8 if lif else 7))


def v2_run(folder: Path) -> Run:
    """All connections of a golden folder as one run."""
    return golden_run(folder)


def v2_options(path: Path) -> V2Options:
    """The options of a golden inference file, with the defects that made it."""
    _, name, feed = path.name.removesuffix(".jsonl.gz").split("_")
    return settings(
        name,  # type: ignore[arg-type]
        lif=not path.parent.name.endswith("_nolif"),
        feed="prediction" if feed == "pred" else "target",
        strict_reference=True,
    )


@dataclass
class V2Dictionary:
    """Names and flags as they grow over a run (contract of profile v2, sections 3 and 6.2).

    Sequence number 0 stands for training. With subwords, both flags are those of any occurrence, so a
    table is made for every sequence instead of remembering since when a flag holds.
    """

    subwords: bool
    concepts: list[str] = field(default_factory=list)
    features: list[str] = field(default_factory=list)
    delimiter: list[bool] = field(default_factory=list)
    probable: list[bool] = field(default_factory=list)

    @classmethod
    def saved(cls, folder: Path) -> V2Dictionary:
        """The dictionary that inference starts from."""
        stored = read_json(folder / "dictionary.json.gz")
        if "concepts" in stored:
            return cls(False, stored["concepts"], stored["features"], stored["det"], stored["prob"])
        flags = np.zeros((2, stored["n_features"]), bool)
        flags[0, stored["det_features"]] = flags[1, stored["prob_features"]] = True
        names = [str(number) for number in range(stored["n_concepts"])]
        return cls(True, names, ["", *names], flags[0].tolist(), flags[1].tolist())

    def expand(self, line: dict[str, Any]) -> None:
        """Take in one sequence of an inference file."""
        if line["status"] != "inferred":
            return
        if not self.subwords:
            new = [lemma for lemma, concept in zip(line["lemmas"], line["concept"], strict=True) if concept]
            self.concepts.extend(lemma for lemma in dict.fromkeys(new) if lemma not in self.concepts)
        flags = zip(line["concept"], line["seq_delim_D"], line["seq_delim_P"], strict=True)
        for at, (concept, delimiter, probable) in enumerate(flags):
            if concept:
                continue
            feature = line["ids"][at] + 1 if self.subwords else self._feature(line["words"][at], delimiter)
            if self.subwords:
                self.delimiter[feature] |= delimiter
            self.probable[feature] |= probable

    def _feature(self, word: str, delimiter: bool) -> int:
        if word not in self.features[1:]:
            self.features.append(word)
            self.delimiter.append(delimiter)
            self.probable.append(False)
            return len(self.features) - 1
        return self.features.index(word, 1)

    def flags(self) -> FlagTable:
        """The flags as they are now."""
        return FlagTable(np.array(self.delimiter, bool), np.where(self.probable, 0, -1))

    def name(self, column: int, feature: int) -> str:
        """What a neuron is called."""
        return self.features[feature] if feature else self.concepts[column]


def v2_prepared(line: dict[str, Any]) -> PreparedSequence:
    """An inferred sequence of a golden inference file."""
    return prepared(line, 1)


def native_first(scores: list[float]) -> int:
    """Which of some scores the reference takes (contract of profile v2, section 7, Ties)."""
    if len(scores) >= 64:
        return int(np.argmax(scores))
    a, n = [(score, place) for place, score in enumerate(scores)], len(scores)
    while n > 3:
        n = _smaller_part(a, n)
    for end in range(1, n):
        at = end
        while at > 0 and a[at][0] > a[at - 1][0]:
            a[at], a[at - 1] = a[at - 1], a[at]
            at -= 1
    return a[0][1]


def _smaller_part(a: list[tuple[float, int]], n: int) -> int:
    """Divide the first n elements by a pivot and return how many come first."""
    places = (1, n // 2, n - 1)
    x, y, z = (a[place][0] for place in places)
    middle = (1 if y > z else 2 if x > z else 0) if x > y else (0 if x > z else 2 if y > z else 1)
    a[0], a[places[middle]] = a[places[middle]], a[0]
    pivot, i, j = a[0][0], 1, n
    while True:
        while a[i][0] > pivot:
            i += 1
        j -= 1
        while pivot > a[j][0]:
            j -= 1
        if i >= j:
            break
        a[i], a[j] = a[j], a[i]
        i += 1
    return i
