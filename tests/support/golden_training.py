"""The golden training sets: what was trained on, with which options, and reading them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from support.conformance import read_json, read_lines

STATUS = {"trained": 0, "no_concept": 1, "no_delimiter_between_concepts": 2}


@dataclass(frozen=True)
class GoldenSet:
    """A golden folder with its text.

    Attributes
    ----------
    folder, text, test_text, ever_pos : Path
        Golden files, training text, the other text of inference, lexicon.
    seed_tokens, max_sequences : int
        Options of the training run.
    """

    folder: Path
    text: Path
    test_text: Path
    ever_pos: Path
    seed_tokens: int
    max_sequences: int

    def input_of(self, inference_file: Path) -> tuple[Path, int]:
        """The text of a golden inference file and how many of its sequences were read."""
        name = inference_file.name.split("_")[1]
        letters = name.rstrip("0123456789")
        return (self.test_text if letters.endswith("test") else self.text), int(name.removeprefix(letters))


def synthetic_set(data: Path) -> GoldenSet:
    """The set that is part of the project."""
    text = data / "synthetic"
    return GoldenSet(
        data / "syn_seed8", text / "train.conllu.gz", text / "test.conllu.gz", text / "everpos.json", 8, 200
    )


def ewt_set(shared: Path, name: str) -> GoldenSet:
    """One of the sets on real text beside the checkout."""
    ewt = shared / "data" / "ewt"
    seed, limit = {"seed8_N200": (8, 200), "seed12_N200": (12, 200), "seed12_N1000": (12, 1000)}[name]
    return GoldenSet(
        shared / "golden" / "v1" / name,
        ewt / "dev.conllu.gz",
        ewt / "test.conllu.gz",
        ewt / "everpos_dev_test.json.gz",
        seed,
        limit,
    )


EWT_NAMES = ("seed8_N200", "seed12_N200", "seed12_N1000")
NEURON_KEYS = ("strength", "col", "feat", "seg", "branch")
KEYS = ("src_col", "src_feat", "seg", "tgt_col", "tgt_feat", "branch")


def check_connections(exported: Path, golden: Path) -> int:
    """Compare exported with golden connections; return how many there are."""
    with np.load(exported) as ours, np.load(golden) as theirs:
        a, b = ({k: z[k].astype(np.float64) for k in (*KEYS, "strength")} for z in (ours, theirs))
    first, second = (np.lexsort([z[k] for k in reversed(KEYS)]) for z in (a, b))
    assert len(first) == len(second)
    for key in KEYS:
        np.testing.assert_array_equal(a[key][first], b[key][second])
    np.testing.assert_allclose(a["strength"][first], b["strength"][second], rtol=1e-5, atol=0)
    return len(first)


def check_neurons(exported: Path, golden: Path) -> None:
    """Compare the neurons' own strengths, which are whole numbers."""
    with np.load(exported) as ours, np.load(golden) as theirs:
        a, b = ({k: z[k].astype(np.int64) for k in NEURON_KEYS} for z in (ours, theirs))
    first, second = (np.lexsort([z[k] for k in NEURON_KEYS[1:]]) for z in (a, b))
    for key in NEURON_KEYS:
        np.testing.assert_array_equal(a[key][first], b[key][second])


def check_dictionaries(exported: Path, golden: Path) -> None:
    """Compare exported with golden dictionaries and flags."""
    ours, theirs = read_json(exported), read_json(golden)
    for name, values in theirs.items():
        assert ours[name] == values, name


def golden_sequences(folder: Path) -> list[dict[str, object]]:
    """The records of the golden training sequences."""
    return list(read_lines(folder / "train_sequences.jsonl.gz"))
