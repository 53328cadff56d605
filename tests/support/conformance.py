"""Helpers of the tests: readers of the golden files, and inference over plain dictionaries."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from giaann_dask.keys import pack_neuron, pack_target
from giaann_dask.models.columns.state.activation import Pulse, TokenTimes
from giaann_dask.models.columns.state.inference_options import InferenceOptions
from giaann_dask.models.columns.state.session import FlagTable, PreparedSequence
from giaann_dask.runs.run import Run, narrow_strength
from giaann_dask.spec import Specification

STRENGTH_UNIT = 1 << 20
C, F, L = 3, 5, 7
Entry = tuple[int, int, int]  # segment, neuron, branch


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a golden .jsonl.gz file."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def read_json(path: Path) -> dict[str, Any]:
    """A golden .json or .json.gz file."""
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


def golden_specification(folder: Path) -> Specification:
    """The specification of a golden v1 folder, named like seed12_N200 or syn_seed8."""
    part = next(part for part in folder.name.split("_") if part.startswith("seed"))
    return Specification(flags="history", seed_tokens=int(part.removeprefix("seed")))


def golden_run(folder: Path) -> Run:
    """All connections of a golden folder as one run."""
    with np.load(folder / "connections.npz") as arrays:
        source = pack_neuron(arrays["src_col"], arrays["src_feat"])
        neuron = pack_neuron(arrays["tgt_col"], arrays["tgt_feat"])
        target = pack_target(arrays["seg"], neuron, arrays["branch"])
        strength = np.rint(arrays["strength"].astype(np.float64) * STRENGTH_UNIT).astype(np.int64)
    order = np.lexsort((target, source))
    sources, counts = np.unique(source, return_counts=True)
    pointer = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return Run(sources, pointer, target[order], narrow_strength(strength[order]))


def golden_options(path: Path) -> tuple[InferenceOptions, bool]:
    """The options of a golden inference file, and whether it resolves ties as we do."""
    _, _, timing, feed, *variants = path.name.removesuffix(".jsonl.gz").split("_")
    activations = "intf+c" if "intfc" in variants else "boolf+c" if "boolfc" in variants else "boolf"
    options = InferenceOptions(
        timing=timing,  # type: ignore[arg-type]
        activations=activations,
        sequential="noseq" not in variants,
        feed="prediction" if feed == "pred" else "target",
    )
    return options, "tiefirst" in variants


def inference_files(folder: Path) -> list[Path]:
    """The golden inference files of a folder."""
    return sorted(folder.glob("infer_*.jsonl.gz"))


@dataclass
class GoldenDictionary:
    """Concepts, features and flags as they grow over a run (contract, sections 3 and 7.2).

    Sequence number 0 stands for everything before the run.
    """

    concepts: list[str]
    features: list[str]
    delimiter: list[bool]
    probable_since: list[int]
    column_of: dict[str, int] = field(default_factory=dict)
    feature_of: dict[str, int] = field(default_factory=dict)

    @classmethod
    def saved(cls, folder: Path) -> GoldenDictionary:
        """The dictionary that inference starts from."""
        stored = read_json(folder / "dictionary.json.gz")
        concepts, features = stored["concepts_saved"], stored["features_saved"]
        return cls(
            list(concepts),
            list(features),
            list(stored["det_saved"]),
            [0 if flag else -1 for flag in stored["prob_saved"]],
            {word: index for index, word in enumerate(concepts)},
            {word: index for index, word in enumerate(features) if index},
        )

    def expand(self, line: dict[str, Any], number: int) -> None:
        """Take in one sentence of an inference file."""
        if line["status"] == "too_short_after_combining":
            return
        for lemma, noun in zip(line["lemmas"], line["concept"], strict=True):
            if noun and lemma not in self.column_of:
                self.column_of[lemma] = len(self.concepts)
                self.concepts.append(lemma)
        if not any(line["concept"]):
            return
        tokens = zip(line["words"], line["concept"], line["seq_delim_D"], line["seq_delim_P"], strict=True)
        for word, noun, delimiter, probable in tokens:
            if noun:
                continue
            if word not in self.feature_of:
                self.feature_of[word] = len(self.features)
                self.features.append(word)
                self.delimiter.append(delimiter)
                self.probable_since.append(-1)
            feature = self.feature_of[word]
            if probable and self.probable_since[feature] < 0:
                self.probable_since[feature] = number

    def flags(self) -> FlagTable:
        """The flags with the numbers of the sequences since which they hold."""
        return FlagTable(np.array(self.delimiter, bool), np.array(self.probable_since, np.int64))

    def matches(self, line: dict[str, Any], index: int, column: int, feature: int) -> bool:
        """Whether a predicted neuron matches a token of a sentence (contract, Match)."""
        word = self.concepts[column] if feature == 0 else self.features[feature]
        if word == line["words"][index]:
            return True
        lemma = line["lemmas"][index]
        concept = self.concepts[column]
        return bool(line["concept"][index]) and feature == 0 and lemma == concept


def prepared(line: dict[str, Any], number: int) -> PreparedSequence:
    """An inferred sentence of a golden inference file."""
    neuron = pack_neuron(line["col"], line["feat"])
    return PreparedSequence(neuron=neuron, noun=np.array(line["concept"], bool), number=number)


class Oracle:
    """Section 8 of the contract over dictionaries, one entry at a time, for 8 seed tokens."""

    def __init__(self, options: InferenceOptions) -> None:
        self.options = options
        self.value: dict[Entry, np.float32] = {}
        self.time: dict[Entry, int] = {}

    def burst(self, neuron: int) -> None:
        self.value[L, neuron, 0] = self.value.get((L, neuron, 0), np.float32(0)) + np.float32(1)

    def branch_sum(self, neuron: int, branch: int) -> np.float32:
        total = np.float32(0)
        for segment in range(L + 1):
            total += self.value.get((segment, neuron, branch), np.float32(0))
        return total

    def activity(self, neuron: int) -> int:
        return sum((L, neuron, b) in self.value and self.branch_sum(neuron, b) > 0 for b in range(2))

    def deactivate(self, neuron: int) -> None:
        strongest = 1 if self.branch_sum(neuron, 1) > self.branch_sum(neuron, 0) else 0
        for entry in self.value:
            if entry[1] == neuron and entry[2] == strongest:
                self.value[entry] = np.float32(0)

    def propagate(self, row: list[Entry], pulse: Pulse) -> None:
        before, times = dict(self.value), dict(self.time)
        for segment, neuron, branch in row:
            now = pulse.feature_time if segment >= C else pulse.column_time
            if segment not in (0, C):
                previous = (segment - 1, neuron, branch)
                if self.options.sequential and not before.get(previous, 0) > 0:
                    continue
                if self.options.timing == "exact" and now - times.get(previous, 0) != 1:
                    continue
            entry = (segment, neuron, branch)
            self.value[entry] = self.value.get(entry, np.float32(0)) + np.float32(pulse.drive)
            if self.options.timing != "none":
                self.time[entry] = now
        for entry, value in self.value.items():
            boolean = {"boolf": entry[0] >= C, "boolf+c": True, "intf+c": False}[self.options.activations]
            if boolean:
                self.value[entry] = np.float32(value > 0)

    def scores(self, row: list[Entry], times: TokenTimes) -> dict[int, float]:
        connected = {neuron for segment, neuron, _ in row if segment == L}
        chosen = sorted(n for n in connected if any((L, n, b) in self.value for b in range(2)))
        return {neuron: float(self.score(neuron, times)) for neuron in chosen}

    def score(self, neuron: int, times: TokenTimes) -> np.float32:
        total = np.float32(0)
        columns = times.column_time + (times.open_noun and neuron % (1 << 25) == 0)
        for segment in range(L + 1):
            expected = times.feature_time - (F - (segment - C)) if segment >= C else columns - (C - segment)
            values = []
            for branch in range(2):
                entry = (segment, neuron, branch)
                if entry in self.value:
                    penalty = abs(expected - self.time.get(entry, 0))
                    biased = self.options.timing == "biased"
                    values.append(self.value[entry] - np.float32(penalty if biased else 0))
            total += max(values, default=np.float32(0))
        return total
