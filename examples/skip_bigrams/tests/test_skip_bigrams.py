"""Skip-bigrams keep what every model has to keep; what they predict is worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

import giaann_dask as gd
from giaann_dask.cli import run
from giaann_dask.testing import ModelTests


class TestSkipBigrams(ModelTests):
    """Tests that every model has to pass."""

    profile = "skip-bigrams"


def test_probabilities_of_a_small_text(tmp_path: Path) -> None:
    """Predict the end of a text of three words."""
    options = {"reach": 2, "backoff": 0.5}
    specification = gd.Specification(profile="skip-bigrams", model_options=options)
    text = tmp_path / "text.txt"
    text.write_text("a b c")
    with gd.connect(workers=0) as client:
        network = gd.train(text, tmp_path / "network", client=client, specification=specification)
        token = network.generate("a b", max_tokens=1, client=client).tokens[0]
    further = ["train", str(text), "--network", str(network.path), "--workers", "0", "--set"]
    assert [run([*further, f"model_options=reach={reach}"]) for reach in (2, 3)] == [0, 2], "what is not set is kept"
    # Each of three words occurs once, so that an unknown one has as much: 1 / (3 + 3).
    everywhere = 1 / 6
    assert token.word == "c"
    assert token.candidates[0].value == pytest.approx(0.5 + 0.5 * (0.5 + 0.5 * everywhere))
    assert [reason.word for reason in token.reasons] == ["after b", "after a _"]


def test_options_out_of_range_are_refused() -> None:
    """Give a reach that is too small."""
    with pytest.raises(gd.GiaannError, match=r"reach 0.*expected 1 to 30"):
        gd.Specification(profile="skip-bigrams", model_options={"reach": 0})
