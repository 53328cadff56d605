"""Profile ``contexts`` through a network: the same counts, tokens and probabilities as its pure functions."""

from __future__ import annotations

import gzip
import json
import math
import re
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.documents import read_documents

import giaann_dask as gd
from giaann_dask.cli import run
from giaann_dask.encoding.stream import StreamOptions
from giaann_dask.errors import EmptyInputError, GiaannError, OptionError, SpecificationError
from giaann_dask.models.contexts.kinds import CONTEXTS, count_kinds
from giaann_dask.models.contexts.scores import BEST, KNESER_NEY, LogLinearModel, backoff_matches
from giaann_dask.models.contexts.specification import CHAIN_NAMES, CONTEXT_NAMES
from giaann_dask.models.contexts.tables import PackedTables, build_tables
from giaann_dask.models.words import score_report
from giaann_dask.models.words.score_report import ScoreReport
from giaann_dask.models.words.scores import TextScores
from giaann_dask.models.words.stream import TokenStream
from giaann_dask.runs.run import Run
from giaann_dask.store.export import read_whole
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.text.read_options import ReadOptions

DATA = Path(__file__).resolve().parent.parent / "data" / "synthetic"
TRAIN, TEST = DATA / "train.conllu.gz", DATA / "test.conllu.gz"
RULE = gd.Specification(profile="contexts")
KINDS = [CONTEXT_NAMES.index(name) for name in RULE.contexts]
FILES = ("npz", "json", "neurons.npz")


def stream_of(*paths: Path) -> TokenStream:
    return TokenStream.from_documents(read_documents(paths))


@cache
def pure_tables() -> PackedTables:
    """Of all kinds of contexts, those that a network leaves out among them."""
    stream = stream_of(TRAIN)
    return build_tables([count_kinds(stream)], stream.words)


def trained(text: Any, folder: Path, client: Any = None, **options: Any) -> gd.Network:
    rule = gd.Specification(profile="contexts", regions=options.pop("regions", 3))
    part = gd.TextOptions(reading=ReadOptions(part_characters=options.pop("part", 262_144)))
    wanted = gd.TrainingOptions(**options)
    if client is not None:
        return gd.train(text, folder, client=client, specification=rule, text=part, options=wanted)
    with gd.connect(workers=0) as own:
        return gd.train(text, folder, client=own, specification=rule, text=part, options=wanted)


def counts_of(network: gd.Network) -> tuple[Run, list[str]]:
    """Return the counts and the words of a network."""
    store = NetworkStore(network.path)
    reader = store.open(network.commit)
    return read_whole(reader), sorted(reader.saved_vocabulary().features[1:])


def counted(stream: TokenStream) -> tuple[Run, list[str]]:
    """Count the kinds of contexts of the profile."""
    return count_kinds(stream, KINDS), sorted(stream.words)


def plain(counts: tuple[Run, list[str]]) -> object:
    run, words = counts
    return [array.tolist() for array in (run.source, run.pointer, run.target, run.strength)], words


def exported(network: gd.Network, folder: Path) -> list[bytes]:
    network.export(folder / network.path.name)
    return [(folder / f"{network.path.name}.{kind}").read_bytes() for kind in FILES]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> gd.Network:
    return trained(TRAIN, tmp_path_factory.mktemp("contexts") / "net")


def test_specification() -> None:
    assert tuple(kind.name for kind in CONTEXTS) == CONTEXT_NAMES
    weighed = {CONTEXTS[kind].name for kind in BEST.kinds}
    assert weighed | set(CHAIN_NAMES) == set(RULE.contexts), "what is weighed is counted, and nothing else"
    assert gd.Specification.from_dict(json.loads(json.dumps(RULE.as_dict()))) == RULE
    assert gd.Specification(profile="contexts", contexts=reversed(CONTEXT_NAMES)).contexts == CONTEXT_NAMES
    assert "contexts" not in gd.Specification().as_dict() | gd.Specification(profile="v2").as_dict()
    assert RULE.strengths(np.array([3])).tolist() == [3.0]


@pytest.mark.parametrize(
    "options",
    [
        {"lif": True},
        {"branches": 2},
        {"tokens": "subwords"},
        {"placement": "balanced"},
        {"strength_limit": 7.0},
        {"pos_factors": {"NOUN": 2.0}},
        {"maximum_tokens": 90},
        {"contexts": ("all", "1")},
        {"contexts": (*CHAIN_NAMES, "7")},
        {"profile": "v1", "contexts": CHAIN_NAMES},
        {"profile": "v2", "contexts": CHAIN_NAMES},
    ],
)
def test_options_without_meaning_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(SpecificationError):
        gd.Specification(**{"profile": "contexts", **options})


def test_a_network_holds_the_counts_of_its_text(network: gd.Network) -> None:
    stream = stream_of(TRAIN)
    assert plain(counts_of(network)) == plain(counted(stream))
    manifest = network.manifest
    assert (manifest.tokens, manifest.connections) == (len(stream), len(counts_of(network)[0]))
    assert (manifest.trained, manifest.sequences) == (260, 260)
    assert network.describe()["connections"] == manifest.connections


@pytest.mark.slow
def test_plain_text_of_any_sentences(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("Hm. The CAT sat; the cat Slept!\n\nOne\n\n" + "so it goes on " * 40 + ".\n", encoding="utf-8")
    found = trained(text, tmp_path / "net")
    assert plain(counts_of(found)) == plain(counted(stream_of(text)))
    assert "cat" in counts_of(found)[1]
    assert "CAT" not in counts_of(found)[1]
    (tmp_path / "short.txt").write_text("Hm.\n")
    with gd.connect(workers=0) as client, pytest.raises(EmptyInputError):
        found.score(tmp_path / "short.txt", client=client)


def test_probabilities_are_those_of_the_pure_path(network: gd.Network) -> None:
    stream, tables = stream_of(TEST), pure_tables()
    expected = LogLinearModel(tables, BEST).score(stream)
    with gd.connect(workers=0) as client:
        options = gd.ScoringOptions(baseline="ngram", tokens_per_task=333)
        found = network.score(TEST, client=client, options=options)
        some = network.score(TEST, client=client, options=gd.ScoringOptions(first_sequence=20, max_sequences=30))
    assert found.scores.log_probability.tobytes() == expected.log_probability.tobytes()
    assert found.predicted == expected.summary(8)
    assert found.every == expected.summary()
    assert found.sequences == int((stream.place == 0).sum())
    assert found.baseline is not None
    smoothed = LogLinearModel(tables, KNESER_NEY).score(stream)
    assert found.baseline.smoothed.log_probability.tobytes() == smoothed.log_probability.tobytes()
    assert found.baseline.backoff.tolist() == backoff_matches(tables, stream).tolist()
    assert len(found.lines()) == 2
    assert some.sequences == 30
    first = int(np.flatnonzero(stream.place == 0)[20])
    assert some.scores.place.tolist() == stream.place[first : first + some.every.tokens].tolist()


def test_ngrams_of_the_tokens_that_v1_predicts(tmp_path: Path) -> None:
    text = gd.TextOptions(tagger="gold")
    limit = gd.TrainingOptions(max_sequences=150)
    with gd.connect(workers=0) as client:
        columns = gd.train(TRAIN, tmp_path / "v1", client=client, text=text, options=limit)
        found = columns.evaluate(TEST, client=client, text=text)
        beside = columns.compare_ngrams(TEST, TRAIN, client=client, text=text)
        with pytest.raises(OptionError, match="profile v1"):
            columns.score(TEST, client=client)
    figures = beside.as_dict(8)
    assert {figures[name]["tokens"] for name in ("backoff", "kneser_ney", "contexts")} == {found.prediction_tokens}
    assert len(beside.smoothed.place) == found.tokens
    assert 0.02 < figures["backoff"]["top1"] < 0.5
    assert len(beside.lines(8)) == 3


def test_what_needs_columns_is_refused(network: gd.Network, tmp_path: Path) -> None:
    sources: list[Any] = [
        lambda _: network.draw(),
        lambda _: network.table(),
        lambda client: network.compare_ngrams(TEST, TRAIN, client=client),
        lambda client: gd.encode(TRAIN, tmp_path / "corpus", client=client, specification=RULE),
        lambda client: gd.train(
            TRAIN, tmp_path / "x", client=client, specification=RULE, text=gd.TextOptions(ever_pos="corpus")
        ),
    ]
    with gd.connect(workers=0) as client:
        for refused in sources:
            with pytest.raises(GiaannError, match="contexts"):
                refused(client)
        corpus = gd.encode(TRAIN, tmp_path / "corpus", client=client, text=gd.TextOptions(tagger="gold"))
        with pytest.raises(SpecificationError, match="raw words"):
            gd.train(corpus.path, tmp_path / "x", client=client, specification=RULE)
    assert not (tmp_path / "x").exists()


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "net")
    made = [
        "train",
        str(TRAIN),
        "--network",
        folder,
        "--profile",
        "contexts",
        "--set",
        "contexts=all",
        "--workers",
        "0",
    ]
    measured = ["evaluate", folder, str(TEST), "--workers", "0"]
    for command in (made, [*measured, "--baseline", "ngram"], ["inspect", folder]):
        assert run([*command, "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    report, told = (json.loads(line) for line in lines[1:])
    assert report["baseline"]["kneser_ney"]["tokens"] == report["prediction_tokens"] == 1120
    assert 1 < report["perplexity"] < 100
    assert told["specification"]["contexts"] == list(CONTEXT_NAMES)
    for option in (["--top-k", "0"], ["--timing", "exact"], ["--baseline-text", "x"], ["--settings", "train"]):
        assert run([*measured, *option]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert run(["draw", folder, "--out", str(tmp_path / "net.svg")]) == 2
    assert run([*made[:-4], "--set", "contexts=1", "--workers", "0"]) == 2


def no_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def test_a_token_of_more_nats_than_a_float_takes(
    network: gd.Network, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "unsegmented.txt"
    text.write_text("the dog saw the cat and the dog saw " + "".join(chr(0x10D0 + at % 33) for at in range(900)) + "\n")
    options = gd.ScoringOptions(baseline="ngram")
    with gd.connect(workers=0) as client:
        report = network.score(text, client=client, options=options)
    assert report.predicted.perplexity == report.every.perplexity == math.inf
    assert 5 < report.every.bits_per_byte < 20
    assert "infinite" in repr(report)
    command = ["evaluate", str(network.path), str(text), "--workers", "0", "--baseline", "ngram"]
    assert run([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=no_constant)
    assert found["every_token"]["perplexity"] is None
    assert found["every_token"]["bits_per_byte"] == report.every.bits_per_byte
    assert run(command) == 0
    shown = capsys.readouterr().out
    assert "infinite" in shown
    assert re.search(r"^seconds +[\d.]+ without the start of workers, [\d.]+ in all$", shown, re.MULTILINE)


def test_unseen_characters_are_stored(tmp_path: Path) -> None:
    text = tmp_path / "odd.conllu.gz"
    row = "\t".join(["{}", "{}", *"_" * 8])
    words = ["İstanbul", "ﬁ", "𝔘", "a b", "Straße", "ΟΔΟΣ"] * 2
    lines = [row.format(number, word) for number, word in enumerate(words, 1)]
    text.write_bytes(gzip.compress(("\n".join(lines) + "\n\n").encode()))
    found = trained(text, tmp_path / "net")
    assert plain(counts_of(found)) == plain(counted(stream_of(text)))
    with gd.connect(workers=0) as client:
        report = found.score(text, client=client)
    assert report.every.unknown == 0


def test_figures_of_records_are_sums_of_their_tokens() -> None:
    place, document = np.array([0, 1, 0, 0, 1]), np.array([1, 1, 1, 3, 3])
    logs, yes = np.array([-1.0, -2.0, -3.0, -800.0, -900.0]), np.array([1, 0, 1, 1, 1], bool)
    scores = TextScores(logs, yes, np.full(5, 4), place, document, yes, np.zeros(5, int))
    found = scores.by_record(5)
    assert found["tokens"].tolist() == [0, 3, 0, 2, 0]
    assert found["nats"].tolist() == [0, 6, 0, 1700, 0]
    assert (found["unknown"].tolist(), found["nbytes"].tolist()) == ([0, 1, 0, 0, 0], [0, 12, 0, 8, 0])
    assert scores.by_record(5, 1)["matches"].tolist() == [0, 0, 0, 1, 0]
    report = ScoreReport(3, 1, scores.summary(1), scores.summary(), 1.0, "COMMIT", scores, record_count=5)
    first, second = report.records[1], report.records[3]
    assert first is not None
    assert second is not None
    assert (first.log_probability, first.perplexity, second.perplexity) == (-6, math.exp(2), math.inf)
    assert [each is None for each in report.records] == [True, False, True, False, True]
    frame = report.frame(seed_tokens=1)
    assert frame["log_probability"].isna().tolist() == [True, False, True, False, True]
    assert frame["perplexity"].tolist()[1::2] == [math.exp(2), math.inf]


LONG = "the dog saw the cat and the dog saw the cat in the house ."
RECORDS = [LONG, "Hm.", "", LONG, " \n", "the cat saw a bird near the house and the cat saw the dog .", LONG, ""]


@pytest.mark.parametrize("block", [262_144, 10])
def test_records_have_figures_of_their_own(network: gd.Network, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    """Each as if it was scored alone, also where equal ones are read by tasks of their own."""
    monkeypatch.setattr(score_report, "StreamOptions", partial(StreamOptions, block_characters=block))
    with gd.connect(workers=0) as client:
        report = network.score(RECORDS, client=client)
        alone = network.score([LONG], client=client)
        limited = network.score(RECORDS, client=client, max_sequences=2)
        tokens = network.score(iter(RECORDS), client=client).records
    assert [0 if each is None else each.tokens for each in report.records] == [15, 2, 0, 15, 0, 15, 15, 0]
    assert report.records[0] == report.records[3] == report.records[6] == alone.records[0]
    assert alone.records[0] is not None
    assert alone.records[0].log_probability == pytest.approx(alone.scores.log_probability.sum())
    assert report.every.nats == pytest.approx(sum(each.nats for each in report.records if each))
    assert tokens == report.records
    assert limited.records == report.records[:2]


@pytest.mark.parametrize("kind", ["column", "frame", "dask", "documents"])
def test_a_column_of_figures_has_the_index_of_its_frame(network: gd.Network, kind: str) -> None:
    pandas = pytest.importorskip("pandas")
    labels = [f"r{number}" for number in range(2 * len(RECORDS))]
    table = pandas.DataFrame({"body": [text for text in RECORDS for _ in range(2)]}, index=labels).iloc[::2]
    given: Any = table if kind == "frame" else table["body"]
    if kind == "dask":
        given = pytest.importorskip("dask.dataframe").from_pandas(given, npartitions=3, sort=False)
    text = gd.TextOptions(reading=ReadOptions(text_field="body"))
    if kind == "documents":
        pipeline = pytest.importorskip("spacy").blank("en")
        pipeline.add_pipe("sentencizer")
        given = [annotated(pipeline(text)) for text in table["body"]]
    with gd.connect(workers=0) as client:
        report = network.score(given, client=client, text=text)
    frame = report.frame(report.seed_tokens)
    assert frame.index.tolist() == (list(range(len(RECORDS))) if kind == "documents" else table.index.tolist())
    assert frame["tokens"].tolist() == [7, 0, 0, 7, 0, 7, 7, 0]
    assert frame["tokens"].sum() == report.predicted.tokens
    assert frame["perplexity"].isna().tolist() == [False, True, True, False, True, False, False, True]
    assert frame["log_probability"].sum() == pytest.approx(-report.predicted.nats)
    if kind == "column":
        table["perplexity"] = report.frame()["perplexity"]
        assert table["perplexity"].iloc[0] == report.records[0].perplexity  # type: ignore[union-attr]


def annotated(document: Any) -> Any:
    for token in document:
        token.pos_, token.tag_, token.lemma_ = "NOUN", "NN", token.text
    return document
