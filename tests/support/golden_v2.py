"""The golden sets of profile v2: what was trained on, with which options, and comparing with them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from giaann_dask.keys import unpack_neuron, unpack_target
from giaann_dask.runs.merging import merge_runs
from giaann_dask.runs.placement import Placement
from giaann_dask.runs.run import Run
from giaann_dask.spec import Specification
from giaann_dask.text.blocks import CANDIDATE, DELIMITER, PROBABLE
from giaann_dask.text.segmentation import EncodedBlock
from support.conformance import read_json, read_lines
from support.golden_training import KEYS
from support.summed_increments import connect_summed

Table = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class GoldenSet:
    """A golden folder of profile v2 with its text.

    Attributes
    ----------
    folder, text : Path
        Golden files and training text.
    specification : Specification
        Of the network.
    max_sequences : int
        Sequences that count.
    """

    folder: Path
    text: Path
    specification: Specification
    max_sequences: int

    @property
    def ever_pos(self) -> Path:
        """Lexicon of the words."""
        return self.folder / "everpos.json.gz"

    @property
    def tokenizer(self) -> Path:
        """Tokenizer of the subwords."""
        return self.folder / "tokenizer.json.gz"

    def lines(self) -> list[dict[str, Any]]:
        """The records of the training sequences."""
        return list(read_lines(self.folder / "train_sequences.jsonl.gz"))

    def dictionary(self) -> dict[str, Any]:
        """The dictionaries and stored flags at the end."""
        found: dict[str, Any] = read_json(self.folder / "dictionary.json.gz")
        return found


WORDS = {
    "v2_word": Specification(flags="history", profile="v2"),
    "v2_word_1s": Specification(flags="history", profile="v2", sentences_per_sequence=1),
    "v2_word_nolif": Specification(flags="history", profile="v2", lif=False),
}


def synthetic_words(data: Path) -> GoldenSet:
    """The set of words that is part of the project."""
    folder = data / "v2" / "syn_word"
    return GoldenSet(folder, folder / "syn2train.conllu.gz", Specification(flags="history", profile="v2"), 133)


def ewt_words(shared: Path, name: str) -> GoldenSet:
    """One of the sets on real text beside the checkout."""
    return GoldenSet(shared / "golden" / "v2" / name, shared / "data" / "ewt" / "dev.conllu.gz", WORDS[name], 300)


def connections_of(blocks: list[EncodedBlock], specification: Specification) -> Table:
    """The connections that some blocks train, as coordinate arrays."""
    runs = connect_summed(blocks, specification, Placement(specification.regions))
    run = merge_runs([each.connections for each in runs.values()])
    return table_of(run, specification)


def table_of(run: Run, specification: Specification) -> Table:
    """A run as coordinate arrays."""
    column, feature = unpack_neuron(np.repeat(run.source, np.diff(run.pointer)))
    segment, target, branch = unpack_target(run.target)
    target_column, target_feature = unpack_neuron(target)
    keys = (column, feature, segment, target_column, target_feature, branch)
    return {**dict(zip(KEYS, keys, strict=True)), "strength": specification.strengths(run.strength)}


def check_table(ours: Table, golden: Path) -> None:
    """Compare connections with golden ones: the same keys, and strengths within the tolerance."""
    with np.load(golden) as stored:
        theirs = {name: stored[name].astype(np.float64) for name in (*KEYS, "strength")}
    first, second = (np.lexsort([table[key] for key in reversed(KEYS)]) for table in (ours, theirs))
    assert len(first) == len(second)
    for key in KEYS:
        np.testing.assert_array_equal(ours[key][first], theirs[key][second])
    np.testing.assert_allclose(ours["strength"][first], theirs["strength"][second], rtol=1e-5, atol=0)


def check_sequences(golden: GoldenSet, blocks: list[EncodedBlock], over: int | None = None) -> None:
    """Compare every counted sequence with its record; `over` is one without a record."""
    lines = iter(golden.lines())
    numbers = ((block, q) for block in blocks for q in range(len(block)))
    for counted, (block, q) in enumerate(numbers):
        where = slice(*block.offsets[q : q + 2].tolist())
        if counted == over:
            assert block.status[q] != CANDIDATE
            assert where.start == where.stop
            continue
        line = next(lines)
        assert line["counted"] == counted
        assert block.document[q] == line["article"]
        assert (block.status[q] == CANDIDATE) == (line["status"] == "trained")
        if block.status[q] == CANDIDATE:
            for name, values in (("col", block.column), ("feat", block.feature), ("branch", block.branch)):
                assert values[where].tolist() == line[name], (counted, name)
            for flag, name in ((DELIMITER, "seq_delim_D"), (PROBABLE, "seq_delim_P")):
                assert ((block.flags[where] & flag) != 0).tolist() == line[name], (counted, name)
            assert block.occurrence[where].tolist() == line["occ"]
            concepts = np.flatnonzero(block.feature[where] == 0).tolist()
            assert concepts == line["concept_pos"]
            ends = np.flatnonzero(np.diff(block.occurrence[where], append=-1)) + 1
            assert [0, *ends[:-1].tolist()] == line["start"]
            assert ends.tolist() == line["end"]
    assert next(lines, None) is None


def synthetic_subwords(data: Path) -> GoldenSet:
    """The set of subwords that is part of the project."""
    folder, text = data / "v2" / "syn_bpe", data / "v2" / "syn_word" / "syn2train.conllu.gz"
    return GoldenSet(folder, text, Specification(profile="v2", tokens="subwords"), 133)


def ewt_subwords(shared: Path) -> GoldenSet:
    """The set of subwords on real text beside the checkout."""
    text = shared / "data" / "ewt" / "dev.conllu.gz"
    return GoldenSet(shared / "golden" / "v2" / "v2_bpe", text, Specification(profile="v2", tokens="subwords"), 300)
