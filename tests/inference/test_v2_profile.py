"""Profile ``v2`` from text to predictions: trained, evaluated and continued through the public interface."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.conformance import read_json
from support.stored_networks import reader_of

import giaann_dask as gd


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, data_folder: Path) -> gd.Network:
    """The network of the golden folder syn_word."""
    folder, out = data_folder / "v2" / "syn_word", tmp_path_factory.mktemp("second")
    text = gd.TextOptions(tagger="gold", ever_pos=str(folder / "everpos.json.gz"))
    rule = gd.Specification(profile="v2", flags="history")
    with gd.connect(workers=0) as client:
        return gd.train(folder / "syn2train.conllu.gz", out / "net", client=client, specification=rule, text=text)


def test_evaluation_follows_the_golden_run_but_for_ties(trained: gd.Network, data_folder: Path) -> None:
    folder = data_folder / "v2" / "syn_word"
    golden = read_json(folder / "infer_train_target.info.json")
    reports = {}
    with gd.connect(workers=0) as client:
        for strict in (True, False):
            options = gd.EvaluationOptions(
                inference=gd.V2Settings(settings="train", strict_reference=strict),
                protocol="published",
                max_sequences=40,
            )
            text = gd.TextOptions(tagger="gold")
            reports[strict] = trained.evaluate(
                folder / "syn2train.conllu.gz", client=client, options=options, text=text
            )
    strict, mended = reports[True], reports[False]
    assert strict.prediction_tokens == mended.prediction_tokens == golden["pred_tokens"]
    assert abs(strict.prediction_matches - golden["pred_match"]) <= golden["ties"]
    # Which of equal candidates is the best decides whether it is rejected, too.
    rejected = strict.without_prediction - golden["no_candidate"]
    assert abs(rejected - golden["rejected"]) <= golden["ties"]
    assert mended.without_prediction == golden["no_candidate"]
    assert mended.prediction_matches > strict.prediction_matches
    assert strict.unreached == 0


def test_the_flags_of_subwords_change_with_the_text(trained: gd.Network) -> None:
    """Those of words do not; both come from one place."""
    from giaann_dask.models.columns.flags import FlagChange, changed_flags, flags_of
    from giaann_dask.text.vocabulary import Vocabulary

    saved = reader_of(trained).saved_vocabulary()
    assert flags_of(saved).delimiter_since is None
    before = Vocabulary(["a", "b"], ["", "a", "b"], (), [-1, -1, 3], delimiter_since=[-1, 2, -1])
    after = Vocabulary(["a", "b"], ["", "a", "b"], (), [-1, 7, 3], delimiter_since=[-1, 2, 6])
    base = flags_of(before)
    changed = changed_flags(base, FlagChange.between(base, after))
    assert changed.delimiter_since is not None
    assert changed.delimiter_since.tolist() == [-1, 2, 6]
    assert changed.probable_since.tolist() == [-1, 7, 3]
    assert (changed.mode(2, 5), changed.mode(2, 6)) == (None, "delimiter")
    assert (changed.mode(1, 1), base.mode(2, 9)) == ("internal", None)
