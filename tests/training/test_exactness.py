"""Any number of workers, batches and regions gives byte-identical networks and the same predictions."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from distributed import Client
from support.conformance import golden_options, inference_files, read_json, read_lines
from support.golden_training import (
    EWT_NAMES,
    GoldenSet,
    check_connections,
    check_dictionaries,
    check_neurons,
    ewt_set,
    synthetic_set,
)
from support.village import write_village

import giaann_dask as gd
from giaann_dask.text.read_options import ReadOptions
from giaann_dask.training.training_options import Order, SelectionOptions

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize(
    ("workers", "batch", "regions", "part", "accumulate", "order"),
    [
        pytest.param(1, 500, 1, 20_000, 1, "corpus", marks=pytest.mark.slow),
        (0, 250, 2, 60_000, 1, "corpus"),
        (2, 60, 8, 5_000, 3, "least-overlap"),
        pytest.param(4, 150, 3, 10_000, 1, "random", marks=pytest.mark.slow),
    ],
)
def test_exports_do_not_depend_on_workers_batches_and_regions(
    tmp_path_factory: pytest.TempPathFactory,
    workers: int,
    batch: int,
    regions: int,
    part: int,
    accumulate: int,
    order: Order,
) -> None:
    folder = tmp_path_factory.getbasetemp() / "exactness"
    folder.mkdir(exist_ok=True)
    text = write_village(folder / "village.txt", 400)
    name = f"{workers}"
    with gd.connect(workers=workers) as client:
        network = gd.train(
            text,
            folder / name,
            client=client,
            specification=gd.Specification(regions=regions),
            text=gd.TextOptions(reading=ReadOptions(part_characters=part)),
            options=gd.TrainingOptions(
                batch_sequences=batch,
                block_characters=part,
                commit_seconds=0.2,
                accumulate=accumulate,
                selection=SelectionOptions(order=order),
            ),
        )
        report = network.training_report
        found = network.evaluate(text, client=client, options=gd.EvaluationOptions(max_sequences=20))
    assert report.trained > 170
    assert report.column_touches > report.shared_touches
    assert (report.shared_touches > 0) == (workers > 1), "one increment has nothing to overlap with"
    network.export(folder / f"{name}.npz")
    figures = f"{found.prediction_tokens} {found.prediction_matches} {report.connections} {report.tokens}"
    (folder / f"{name}.txt").write_text(figures)
    for kind in ("npz", "neurons.npz"):
        exports = {path.read_bytes() for path in folder.glob(f"[0-9].{kind}")}
        assert len(exports) == 1, kind
    assert len({path.read_text() for path in folder.glob("[0-9].txt")}) == 1


def test_appending_equals_training_at_once(tmp_path: Path) -> None:
    first, second = write_village(tmp_path / "a.txt", 120, 2), write_village(tmp_path / "b.txt", 120, 3)
    few = gd.Specification(regions=2)
    with gd.connect(workers=0) as client:
        once = gd.train([first, second], tmp_path / "once", client=client, specification=few)
        gd.train(first, tmp_path / "parts", client=client, specification=few)
        limit = gd.TrainingOptions(max_sequences=140)
        gd.train([first, second], tmp_path / "parts", client=client, options=limit)
        parts = gd.train([second, first], tmp_path / "parts", client=client)
        last = parts.training_report
        nothing = gd.train([first, second], tmp_path / "parts", client=client).training_report
        copy = shutil.copy(second, tmp_path / "c.txt")
        again = gd.train([first, second, copy], tmp_path / "parts", client=client).training_report
        repeats = tmp_path / "repeats"
        both = gd.train([second, copy], repeats, client=client, specification=few, count_repeats=True).training_report
    assert last.sequences == 240 - 140
    assert nothing.sequences == 0
    assert nothing.commit == last.commit
    assert (again.sequences, both.sequences) == (0, 240), "text given twice counts once, unless both are asked for"
    exports = [network.export(tmp_path / f"{network.path.name}.npz")[0] for network in (once, parts)]
    assert exports[0].read_bytes() == exports[1].read_bytes()
    assert once.manifest.tokens == parts.manifest.tokens


def expected_matches(path: Path, dictionary: dict[str, list[str]]) -> int:
    """Matches of a golden file when ties go to the first maximum, as section 8 counts them."""
    matches = 0
    for line in read_lines(path):
        for step in line.get("steps") or []:
            if step["seed"] or "match" not in step or not step["tie"]:
                continue
            column, feature = step["tie"][0]
            concept = dictionary["concepts_saved"][column]
            word = concept if feature == 0 else dictionary["features_saved"][feature]
            noun = line["concept"][step["w"]]
            lemma = noun and feature == 0 and concept == step["tgt_lemma"]
            matches += word == step["tgt_word"] or lemma
    return matches


def check_accuracy(client: Client, golden: GoldenSet, network: gd.Network, files: list[Path]) -> None:
    dictionary = read_json(golden.folder / "dictionary.json.gz")
    for path in files:
        options, ties_as_ours = golden_options(path)
        info = read_json(path.with_name(path.name.removesuffix(".jsonl.gz") + ".info.json"))
        text, count = golden.input_of(path)
        found = network.evaluate(
            text,
            client=client,
            options=gd.EvaluationOptions(inference=options, max_sequences=count, protocol="published"),
            text=gd.TextOptions(tagger="gold"),
        )
        matches = info["pred_match"] if ties_as_ours else expected_matches(path, dictionary)
        assert (found.prediction_tokens, found.prediction_matches) == (info["pred_steps"], matches), path.name
        assert found.inferred == info["status"]["inferred"]
        assert found.tokens == info["tot_tokens"]
        if not ties_as_ours and info["ties"] == 0:
            assert found.prediction_matches == info["pred_match"]


def comparable(folder: Path) -> list[Path]:
    """Files whose course does not depend on how the reference broke ties: all but natively fed predictions."""
    files = [(path, *golden_options(path)) for path in inference_files(folder)]
    return [path for path, options, ours in files if ours or options.feed == "target"]


def check_golden(client: Client, golden: GoldenSet, folder: Path, files: list[Path]) -> None:
    network = gd.train(
        golden.text,
        folder / "net",
        client=client,
        specification=gd.Specification(flags="history", seed_tokens=golden.seed_tokens),
        text=gd.TextOptions(tagger="gold", ever_pos=str(golden.ever_pos)),
        options=gd.TrainingOptions(max_sequences=golden.max_sequences),
    )
    report = network.training_report
    info = read_json(golden.folder / "train.info.json")
    assert report.connections == info["nonzero_connections"]
    assert report.tokens == info["tokens_trained"]
    arrays, names, neurons = network.export(folder / "net.npz")
    assert check_connections(arrays, golden.folder / "connections.npz") == info["nonzero_connections"]
    check_neurons(neurons, golden.folder / "neurons.npz")
    check_dictionaries(names, golden.folder / "dictionary.json.gz")
    check_accuracy(client, golden, network, files)


@pytest.fixture(scope="module")
def two_workers() -> Client:
    with gd.connect(workers=2) as client:
        yield client


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_golden_synthetic(two_workers: Client, data_folder: Path, tmp_path: Path, every: int) -> None:
    golden = synthetic_set(data_folder)
    files = comparable(golden.folder)
    assert len(files) == 32
    check_golden(two_workers, golden, tmp_path, files[::every])


@pytest.mark.slow
@pytest.mark.parametrize("name", EWT_NAMES)
def test_golden_ewt(two_workers: Client, shared_folder: Path, tmp_path: Path, name: str) -> None:
    golden = ewt_set(shared_folder, name)
    check_golden(two_workers, golden, tmp_path, comparable(golden.folder)[::6])


@pytest.mark.slow
@pytest.mark.parametrize("name", EWT_NAMES)
def test_golden_ewt_whole(two_workers: Client, shared_folder: Path, tmp_path: Path, name: str) -> None:
    golden = ewt_set(shared_folder, name)
    check_golden(two_workers, golden, tmp_path, comparable(golden.folder))


def test_lexicon_from_the_corpus_itself(two_workers: Client, data_folder: Path, tmp_path: Path) -> None:
    golden = synthetic_set(data_folder)
    text = tmp_path / "both.conllu"
    import gzip

    text.write_bytes(gzip.decompress(golden.text.read_bytes()) + gzip.decompress(golden.test_text.read_bytes()))
    network = gd.train(
        text,
        tmp_path / "net",
        client=two_workers,
        specification=gd.Specification(flags="history"),
        text=gd.TextOptions(tagger="gold", ever_pos="corpus"),
        options=gd.TrainingOptions(max_sequences=200),
    )
    arrays = network.export(tmp_path / "net.npz").connections
    check_connections(arrays, golden.folder / "connections.npz")
    with np.load(arrays) as stored:
        assert stored["strength"].dtype == np.float32
