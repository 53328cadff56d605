"""Sums and differences of networks equal one training, to the byte of what is exported."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zarr
from dask.utils import key_split
from distributed import Client, get_task_stream
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.indexed_networks import assert_index_agrees
from support.plain_training import arrays
from support.random_sums import random_specifications, random_texts
from support.serving_engines import parts_of
from support.stored_networks import reader_of
from support.village import write_village

import giaann_dask as gd
from giaann_dask.algebra import removal, renumbering
from giaann_dask.algebra.certificates import RemovalReport
from giaann_dask.algebra.differences import subtract
from giaann_dask.algebra.removal import forget_documents
from giaann_dask.api.texts import as_sources, sources_of
from giaann_dask.cli import run
from giaann_dask.data import sample_test_text, sample_text
from giaann_dask.errors import (
    OptionError,
    SpecificationError,
    StoreConflictError,
    StoreDamagedError,
    StoreExistsError,
    StoreFullError,
    StoreMissingError,
)
from giaann_dask.keys import pack_neuron, pack_target, unpack_neuron, unpack_target
from giaann_dask.models import model_of
from giaann_dask.models.base import TokenEvent
from giaann_dask.models.contexts.kinds import CONTEXTS
from giaann_dask.runs.packing import PackedRegionRun, pack, unpack
from giaann_dask.runs.renaming import Renaming, rename_parts, rename_run
from giaann_dask.runs.run import Run, select_rows
from giaann_dask.runs.target_sets import run_of_blocks
from giaann_dask.serving.engine import CompletionOptions
from giaann_dask.serving.models import open_engine
from giaann_dask.spec import MAXIMUM_CONCEPTS, MAXIMUM_FEATURES
from giaann_dask.store import beside, places
from giaann_dask.store.manifest import Manifest
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.text.inputs import Files
from giaann_dask.text.ledger import IDENTITY_BYTES

PARAGRAPHS = sample_text().read_text(encoding="utf-8").split("\n\n")
DOCUMENTS = ["\n\n".join(PARAGRAPHS[at::9]) for at in range(3)]
# Few regions: what algebra costs for small texts is tasks.
RULES: dict[str, dict[str, object]] = {
    "v1": {"flags": "canonical", "regions": 2},
    "contexts": {"regions": 2},
}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with gd.connect(workers=0) as made:
        yield made


def specification(profile: str, **options: object) -> gd.Specification:
    return gd.Specification(profile=profile, **{**RULES[profile], **options})  # type: ignore[arg-type]


def write_texts(folder: Path, texts: Sequence[str]) -> list[Path]:
    """Write each text to a file: those of a list are counted in common parts, and only whole ones can be forgotten."""
    folder.mkdir()
    files = [folder / f"{number}.txt" for number in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text, encoding="utf-8")
    return files


def train(client: Client, path: Path, texts: Sequence[str], profile: str, **options: object) -> gd.Network:
    files = write_texts(path.with_suffix(".texts"), texts)
    return gd.train(files, path, client=client, specification=specification(profile, **options))


def exported(network: gd.Network, folder: Path) -> list[bytes]:
    folder.mkdir(exist_ok=True)
    return [file.read_bytes() for file in network.export(folder / "x.npz", compression="none")]


@pytest.fixture(scope="module")
def networks(client: Client, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, gd.Network]]:
    """Networks of each document, of two, of all in another order, and their sum, in different regions, by profile."""

    @functools.cache
    def build(profile: str) -> dict[str, gd.Network]:
        folder = tmp_path_factory.mktemp("networks")
        first, second, third = DOCUMENTS
        kept = {} if profile == "contexts" else {"placement": "balanced"}
        found = {
            "first": train(client, folder / "first", [first], profile),
            "second": train(client, folder / "second", [second], profile, regions=3),
            "third": train(client, folder / "third", [third], profile, regions=1, **kept),
            "all": train(client, folder / "all", [third, first, second], profile, regions=4),
            "without second": train(client, folder / "without", [first, third], profile),
        }
        parts = [found[name] for name in ("second", "third", "first")]
        return {**found, "sum": gd.add(parts, folder / "sum", client=client)}

    return build


@pytest.fixture
def trained(request: pytest.FixtureRequest, networks: Callable[[str], dict[str, gd.Network]]) -> dict[str, gd.Network]:
    """The networks of one profile."""
    return networks(request.param)


def numbering(network: gd.Network) -> list[str]:
    store = NetworkStore(network.path)
    return store.open(store.head()).saved_vocabulary().features


def concepts_of(network: gd.Network) -> list[str]:
    store = NetworkStore(network.path)
    return store.open(store.head()).vocabulary().concepts


PROMPTS = ("The old miller carried the flour", "A baker walked to the river")


def predictions(network: gd.Network, client: Client) -> list[object]:
    """Return what a network of profile ``v1`` answers in every way that does not name its neurons by number."""
    plain = gd.GenerationOptions(max_tokens=8, runners_up=6, reasons=4)
    rules = [gd.InferenceOptions(timing=timing, sequential=False) for timing in ("none", "biased")]
    beam = replace(plain, inference=rules[0], beam=gd.BeamOptions(width=3, depth=2))
    chosen = [plain, *(replace(plain, inference=each) for each in rules), beam]
    timed = {"seconds", "tokens_per_second", "commit", "rows", "stages"}
    found: list[object] = [network.generate(p, client=client, options=each).tokens for p in PROMPTS for each in chosen]
    for inference in rules:
        wanted = gd.EvaluationOptions(inference=inference, top_k=(1, 3, 10), bits_per_byte=True)
        report = network.evaluate([DOCUMENTS[0][:800]], client=client, options=wanted).as_dict()
        found.append({name: value for name, value in report.items() if name not in timed})
    store = NetworkStore(network.path)
    with closing(open_engine(client, store.open(store.head()))) as engine:
        asked = CompletionOptions(tokens=6, candidates=4, columns=9)
        parts = [part for prompt in PROMPTS for part in parts_of(engine, prompt, asked)]
    return [*found, *((part.token, part.columns) for part in parts if isinstance(part, TokenEvent))]


# What depends on the profile is tested with all of them (`ModelTests`), the rest with one.
only_v1 = pytest.mark.parametrize("trained", ["v1"], indirect=True)
only_contexts = pytest.mark.parametrize("trained", ["contexts"], indirect=True)


@only_v1
def test_networks_with_one_digest_predict_the_same(trained: dict[str, gd.Network], client: Client) -> None:
    one, other = trained["all"], trained["sum"]
    assert one.digest() == other.digest()
    assert numbering(one) != numbering(other), "they have other numbers for the same names"
    for one_answer, other_answer in zip(*(predictions(each, client) for each in (one, other)), strict=True):
        assert one_answer == other_answer


@pytest.mark.parametrize(("trained", "renumber"), [("v1", False), ("v1", True)], indirect=["trained"])
def test_forgetting_equals_never_having_trained(
    trained: dict[str, gd.Network], client: Client, tmp_path: Path, renumber: bool
) -> None:
    network = gd.open(shutil.copytree(trained["sum"].path, tmp_path / "net"))
    before = network.commit
    report = gd.forget(network, [DOCUMENTS[1]], client=client, renumber=renumber)
    after = gd.open(network.path)
    assert exported(after, tmp_path / "a") == exported(trained["without second"], tmp_path / "b")
    assert report.digest == trained["without second"].digest()
    assert report.digest_removed == trained["second"].digest()
    assert (report.sequences, report.commit_before) == (trained["second"].manifest.sequences, before)
    assert len(report.parts) == len(reader_of(network).ledger()) - len(reader_of(after).ledger())
    names = (after.manifest.concepts, after.manifest.features)
    fewest = trained["without second"].manifest
    if renumber:
        assert names <= (fewest.concepts, fewest.features)
    else:
        assert names == (network.manifest.concepts, network.manifest.features)
    # It can be trained again, and goes on like any other.
    again = gd.train([DOCUMENTS[1]], network.path, client=client)
    assert again.digest() == trained["all"].digest()
    assert gd.open(network.path, before).digest() == trained["all"].digest()


@pytest.mark.parametrize(("trace", "region_bytes"), [(False, 40_000), (True, 1 << 30)])
def test_a_purge_renames_what_has_later_names_alone(
    trace: bool, region_bytes: int, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of the first training stay, as their names come before those that go."""
    monkeypatch.setattr(renumbering, "RECENT", 40)
    text = write_village(tmp_path / "text.txt", 80, 1).read_text()
    rules = specification("v1", trace=trace)
    network = gd.train([text], tmp_path / "net", client=client, specification=rules, region_bytes=region_bytes)
    assert bool(network.manifest.splits) == (region_bytes == 40_000)
    base = {run.identity for run in network.manifest.runs}
    documents = [f"The {name} hung the red {other} on the old {name} near the baker." for name, other in WORDS]
    for document in documents:
        gd.train([document], network.path, client=client)
    names = gd.open(network.path).manifest.concepts
    forget_quickly(network, documents[0], client)
    # Small runs were added up with others.
    base &= {run.identity for run in gd.open(network.path).manifest.runs}
    store = NetworkStore(network.path)
    removal.leave_out_names(client, store, removal.prepare_purge(client, store))
    assert removal.remove_earlier(client, store)["purged_commits"] == 6
    after = gd.open(network.path)
    assert len(after.commits()) == 1
    assert base
    assert base <= {run.identity for run in after.manifest.runs}
    assert after.manifest.concepts < names
    rest = train(client, tmp_path / "rest", [documents[2], text, documents[1]], "v1", trace=trace)
    assert after.digest() == rest.digest()
    assert (after.manifest.connections, after.manifest.neurons) == (rest.manifest.connections, rest.manifest.neurons)
    assert gd.train([documents[0]], network.path, client=client).digest() != rest.digest()
    gd.forget(network.path, [documents[0]], client=client, renumber=True)
    assert gd.open(network.path).digest() == rest.digest()


def test_the_commit_of_a_purge_is_computed_again_only_where_runs_have_changed(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of larger runs come first, also where a later text has one again that they no longer have."""
    monkeypatch.setattr(renumbering, "RECENT", 500)
    texts = [write_village(tmp_path / f"{number}.txt", 80, number).read_text() for number in (1, 2)]
    for number, text in enumerate(["The captain hung the lantern near the violin on the ship.", *texts]):
        (tmp_path / f"{number}.txt").write_text(text)
    gone, *left = [tmp_path / f"{number}.txt" for number in range(3)]
    network = gd.train([gone, *left], tmp_path / "net", client=client, specification=specification("v1"))
    gd.forget(network.path, gone, client=client)
    store = NetworkStore(network.path)
    first = removal.prepare_purge(client, store)
    late = "The young baker found a lantern on the ship near the wild river."
    gd.train([late], network.path, client=client)
    with pytest.raises(StoreConflictError):
        removal.leave_out_names(client, store, first)
    before, now = (
        {run.identity for run in each.runs} for each in (first.reader.manifest(), gd.open(network.path).manifest)
    )
    new = now - before
    with get_task_stream(client) as stream:
        second = removal.prepare_purge(client, store)
    tasks = Counter(key_split(record["key"]) for record in stream.data)
    assert (tasks["names"], tasks["all_names"]) == (len(new), len(new))
    # Of the latest runs alone; the sums of earlier ones are kept.
    assert tasks["rename"] == 1
    larger = [[runs[0].key for runs in each.snapshot.runs.values() if runs] for each in (first, second)]
    assert larger[0] == larger[1]
    assert {future.key for future in second.computed} >= set(larger[0])
    removal.leave_out_names(client, store, second)
    after = gd.open(network.path)
    assert "violin" not in reader_of(after).vocabulary().concepts
    rest = gd.train(left, tmp_path / "rest", client=client, specification=specification("v1"))
    rest = gd.train([late], rest.path, client=client)
    assert after.digest() == rest.digest()
    assert (after.manifest.connections, after.manifest.neurons) == (rest.manifest.connections, rest.manifest.neurons)
    assert gd.train(gone, after.path, client=client).digest() == gd.train(gone, rest.path, client=client).digest()


WORDS = (("lantern", "zebra"), ("anchor", "violin"), ("kettle", "quill"))


def forget_quickly(network: gd.Network, text: str, client: Client) -> RemovalReport:
    """Subtract a text as a server does, without digests."""
    reader, inputs = reader_of(network), as_sources([text])
    sources = sources_of(reader.manifest().specification, gd.TextOptions(), reader.ever_pos())
    return forget_documents(client, NetworkStore(network.path), inputs, sources, digest=False)


@pytest.fixture(scope="module")
def never_trained(client: Client, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[str, list[int]]]:
    """The digest and the sizes of a network that was trained on texts, by profile; an index changes neither."""

    @functools.cache
    def build(profile: str, *texts: str) -> tuple[str, list[int]]:
        network = train(client, tmp_path_factory.mktemp("never") / "net", texts, profile)
        return network.digest(), sizes_of(network)

    return build


def sizes_of(network: gd.Network) -> list[int]:
    return [getattr(network.manifest, size) for size in ("connections", "neurons", "sequences", "tokens")]


@pytest.mark.parametrize(("profile", "trace"), [("v1", False), ("contexts", True)])
def test_documents_are_subtracted_from_the_latest_runs_that_hold_them(
    profile: str, trace: bool, client: Client, tmp_path: Path, never_trained: Callable[..., tuple[str, list[int]]]
) -> None:
    network = train(client, tmp_path / "net", DOCUMENTS[:2], profile, trace=trace)
    base = {run.identity for run in network.manifest.runs}
    # The first and the last have sentences in common.
    sentences = DOCUMENTS[2].replace("\n", " ").split(". ")
    texts = [". ".join(sentences[start : start + 3]) + "." for start in (3, 6, 5)]
    for text in texts:
        gd.train([text], network.path, client=client)
    rest = [*texts]
    for text in (texts[0], texts[2], DOCUMENTS[1]):
        report = forget_quickly(network, text, client)
        after = gd.open(network.path)
        left = {run.identity for run in after.manifest.runs}
        assert (base <= left) == (text in texts), "what was trained before is read for its own text alone"
        rest = [each for each in rest if each != text]
        expected = [*DOCUMENTS[: 2 if text in texts else 1], *rest]
        assert (after.digest(), sizes_of(after)) == never_trained(profile, *expected)
        assert report.connections == after.manifest.connections
        if trace:
            assert_index_agrees(reader_of(after))
    with pytest.raises(OptionError, match="not at all"):
        forget_quickly(network, texts[0], client)


@only_v1
def test_forgetting_can_purge_everything_before(trained: dict[str, gd.Network], client: Client, tmp_path: Path) -> None:
    network = gd.add([trained["first"], trained["third"]], tmp_path / "net", client=client)
    report = gd.forget(network, [DOCUMENTS[2]], client=client, purge=True)
    left = gd.open(network.path)
    assert (report.purged_commits, [commit for commit, _ in left.commits()]) == (2, [left.commit])
    assert left.digest() == trained["first"].digest()
    with pytest.raises(StoreMissingError):
        gd.open(network.path, network.commit)
    nothing = gd.forget(network, [DOCUMENTS[0]], client=client)
    assert (nothing.connections, gd.open(network.path).manifest.sequences) == (0, 0)


def words_in_store(network: gd.Network, words: Sequence[str]) -> set[str]:
    """Return which words any array of any commit of a network has, dictionaries of skipped sentences included."""
    store, found = NetworkStore(network.path), set()
    for commit, _ in store.commits():
        root = zarr.open_group(store.open(commit).zarr_store(), mode="r")
        content = (
            b"".join(np.asarray(array[...]).tobytes() for _, array in root.arrays()) + repr(dict(root.attrs)).encode()
        )
        found |= {word for word in words if word.encode() in content}
    files = [file.read_bytes() for file in network.path.rglob("*") if file.is_file()]
    return found | {word for word in words if any(word.encode() in each for each in files)}


@pytest.mark.parametrize(("trained", "twice"), [("v1", True)], indirect=["trained"])
def test_purging_leaves_no_name_of_the_document(
    trained: dict[str, gd.Network], client: Client, tmp_path: Path, twice: bool
) -> None:
    network = gd.open(shutil.copytree(trained["first"].path, tmp_path / "net"))
    secret = "The zebroid carried the quagga under the wodge of the okapi before the sun rose over the old mill."
    words = ["zebroid", "quagga", "wodge", "okapi"]
    gd.train([secret], network.path, client=client)
    assert words_in_store(gd.open(network.path), words) == set(words)
    if twice:
        # The first call keeps the names.
        gd.forget(network.path, [secret], client=client)
        assert set(words) & {*numbering(gd.open(network.path)), *concepts_of(gd.open(network.path))}
    gd.forget(network.path, [secret], client=client, purge=True)
    left = gd.open(network.path)
    assert not set(words) & {*numbering(left), *concepts_of(left)}
    assert words_in_store(left, words) == set()
    assert left.digest() == trained["first"].digest()
    assert len(left.commits()) == 1


@only_v1
def test_a_removal_that_was_interrupted_is_finished(
    trained: dict[str, gd.Network], client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The documents' own network goes, earlier commits are purged, and the certificate is made."""
    network = gd.add([trained["first"], trained["third"]], tmp_path / "net", client=client)
    with monkeypatch.context() as killed:
        killed.setattr(places, "remove_place", lambda path: None)
        killed.setattr(NetworkStore, "purge", lambda store: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            gd.forget(network, [DOCUMENTS[2]], client=client, purge=True)
    # The network, that of the documents, and the certificate.
    assert len(list(tmp_path.iterdir())) == 3
    commit = gd.open(network.path).commit
    report = gd.forget(network, [DOCUMENTS[2]], client=client, purge=True)
    assert (report.commit_before, report.commit, report.purged_commits) == (network.commit, commit, 2)
    assert (report.digest, report.digest_removed) == (trained["first"].digest(), trained["third"].digest())
    assert (report.connections_before, report.sequences) == (
        network.manifest.connections,
        trained["third"].manifest.sequences,
    )
    assert [each.name for each in tmp_path.iterdir()] == ["net"]
    with pytest.raises(OptionError, match="not at all"):
        gd.forget(network, [DOCUMENTS[2]], client=client)


@only_v1
def test_a_certificate_can_be_had_after_a_purge(
    trained: dict[str, gd.Network], client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk, and after a kill at any moment, the same command goes on."""
    network = gd.add([trained["first"], trained["third"]], tmp_path / "net", client=client)
    texts = write_texts(tmp_path / "texts", [DOCUMENTS[2]])
    monkeypatch.setattr(beside, "_replace", lambda *_: os.write(os.open("/dev/full", os.O_WRONLY), b"1"))
    with pytest.raises(StoreFullError):
        gd.forget(network, texts, client=client, purge=True, certificate=tmp_path / "none")
    monkeypatch.undo()
    assert len(gd.open(network.path).commits()) == 3
    with pytest.raises(StoreFullError):
        gd.forget(network, texts, client=client, purge=True, certificate="/dev/full")
    commit = gd.open(network.path).commit
    assert [each for each, _ in gd.open(network.path).commits()] == [commit]
    # Raised in this thread at once; `os.kill` may be noticed later.
    model = type(model_of(network.specification))
    monkeypatch.setattr(model, "clear_tables", lambda *_: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        gd.forget(network, texts, client=client, purge=True, certificate=tmp_path / "certificate")
    monkeypatch.undo()
    assert not (tmp_path / "certificate").exists()
    # Named by their identities, too, and after further training.
    (kept,) = json.loads((tmp_path / "net.certificates.json").read_text(encoding="utf-8"))
    gd.train([DOCUMENTS[1]], network.path, client=client)
    with pytest.raises(OptionError, match="not at all"):
        gd.forget(network, [DOCUMENTS[0][:300]], client=client, purge=True)
    report = gd.forget(network, Files(kept["parts"]), client=client, purge=True, certificate=tmp_path / "certificate")
    made = json.loads((tmp_path / "certificate").read_text(encoding="utf-8"))
    assert made == json.loads(json.dumps(report.as_dict()))
    assert (report.commit_before, report.commit, report.purged_commits) == (network.commit, commit, 2)
    assert network.commit in report.purged
    assert (report.digest, report.digest_removed) == (trained["first"].digest(), trained["third"].digest())
    hosts = [socket.gethostname()] if network.specification.traits.probabilities else []
    assert [each["host"] for each in report.caches] == hosts
    assert sorted(each.name for each in tmp_path.iterdir()) == ["certificate", "net", "texts"]
    with pytest.raises(OptionError, match="not at all"):
        gd.forget(network, texts, client=client)


@pytest.mark.parametrize("trained", ["v1", "contexts"], indirect=True)
def test_who_has_the_text_can_recompute_a_certificate(
    trained: dict[str, gd.Network], client: Client, tmp_path: Path
) -> None:
    network = gd.add([trained["first"], trained["second"]], tmp_path / "net", client=client)
    report = gd.forget(network, [DOCUMENTS[0]], client=client)
    said = json.loads(json.dumps(report.as_dict()))
    assert said["specification"]["profile"] == network.specification.profile, "as `train --profile` takes it"
    rule = gd.Specification.from_dict(said["specification"])
    files = write_texts(tmp_path / "texts", [DOCUMENTS[0]])
    text = gd.TextOptions(tagger=said["tagger"] or None)
    again = gd.train(files, tmp_path / "again", client=client, specification=rule, text=text)
    assert again.digest() == said["digest_removed"]
    assert said["ever_pos"] == reader_of(again).ever_pos().identity()
    assert [part.identity for part in again.text_parts()] == said["parts"]


def test_networks_trained_on_misses_are_no_sums(client: Client, tmp_path: Path) -> None:
    first, second = DOCUMENTS[:2]
    missed = gd.TrainingOptions(train_on="misses")
    network = gd.train([first], tmp_path / "net", client=client, specification=specification("v1"))
    assert not network.manifest.trained_on_misses
    network.branch("whole")
    texts = write_texts(tmp_path / "texts", [second])
    network = gd.train(texts, network.path, client=client, options=missed)
    assert network.manifest.trained_on_misses
    # As later training on all tokens changes nothing about it.
    network = gd.train([DOCUMENTS[2]], network.path, client=client)
    for refused in (
        lambda: gd.forget(network, texts, client=client),
        lambda: gd.add([network, tmp_path / "net"], tmp_path / "sum", client=client),
        lambda: gd.create_island(network, tmp_path / "island", {}),
    ):
        with pytest.raises(SpecificationError, match="tokens that it missed"):
            refused()
    assert Manifest.from_dict(json.loads(json.dumps(network.manifest.as_dict()))) == network.manifest
    assert gd.forget(network.path, [first], client=client, branch="whole").connections == 0


@only_contexts
def test_what_was_not_trained_cannot_be_forgotten(
    trained: dict[str, gd.Network], client: Client, tmp_path: Path
) -> None:
    network = gd.add([trained["first"], trained["second"]], tmp_path / "net", client=client)
    for texts, message in (
        ([DOCUMENTS[2]], "not at all"),
        ([DOCUMENTS[0][: len(DOCUMENTS[0]) // 2]], "not at all"),
        (["Too short."], "without a long enough sequence|not at all"),
    ):
        with pytest.raises(OptionError, match=message):
            gd.forget(network, texts, client=client)
    assert gd.open(network.path).commit == network.commit
    assert [each.name for each in tmp_path.iterdir()] == ["net"]


def test_text_in_part_cannot_be_forgotten(client: Client, tmp_path: Path) -> None:
    options = gd.TrainingOptions(max_sequences=20)
    network = gd.train(
        [DOCUMENTS[0]], tmp_path / "net", client=client, specification=specification("contexts"), options=options
    )
    with pytest.raises(OptionError, match="1 in part"):
        gd.forget(network, [DOCUMENTS[0]], client=client)


def test_networks_that_depend_on_order_are_refused(client: Client, tmp_path: Path) -> None:
    rule = gd.Specification(regions=1, flags="history")
    one, two = (gd.train([text], tmp_path / text[:3], client=client, specification=rule) for text in DOCUMENTS[:2])
    with pytest.raises(SpecificationError, match="by the order"):
        gd.add([one, two], tmp_path / "sum", client=client)
    with pytest.raises(SpecificationError, match="by the order"):
        gd.forget(one, [DOCUMENTS[0]], client=client)
    assert not (tmp_path / "sum").exists()
    difference = gd.diff(one, two, client=client)
    assert not difference.is_empty
    for largest in (-1, 1.5):
        with pytest.raises(OptionError, match=f"largest is {largest}; expected a whole number"):
            gd.diff(one, two, client=client, largest=largest)  # type: ignore[arg-type]


@only_contexts
def test_sums_that_would_count_text_twice_are_refused(
    trained: dict[str, gd.Network], client: Client, tmp_path: Path
) -> None:
    one, both, two = trained["first"], trained["without second"], trained["second"]
    with pytest.raises(OptionError, match=r"1 of 2 parts of text of network .* are in earlier ones"):
        gd.add([one, both], tmp_path / "sum", client=client)
    with pytest.raises(OptionError, match="counted once"):
        gd.add([one, both], tmp_path / "sum", client=client, texts=[DOCUMENTS[0]])
    once = gd.add([both, one, two], tmp_path / "once", client=client, overlap="once")
    assert once.digest() == trained["all"].digest()
    with pytest.raises(StoreExistsError, match="already"):
        gd.add([one, two], once.path, client=client)
    with pytest.raises(OptionError, match="two or more"):
        gd.add([one], tmp_path / "one", client=client)
    rule = gd.Specification(seed_tokens=9, regions=1)
    other = gd.train([DOCUMENTS[1]], tmp_path / "other", client=client, specification=rule)
    one = gd.train([DOCUMENTS[1]], tmp_path / "v1", client=client, specification=replace(rule, seed_tokens=8))
    with pytest.raises(SpecificationError, match="other: seed_tokens=9; expected seed_tokens=8"):
        gd.diff(one, other, client=client)
    with pytest.raises(SpecificationError):
        gd.add([one, other], tmp_path / "sum", client=client)


@pytest.mark.parametrize("profile", ["v1", "contexts"])
def test_text_that_networks_share_is_counted_once(profile: str, client: Client, tmp_path: Path) -> None:
    """As a commit of one of them holds it alone, or as it is given."""
    rule = specification(profile, trace=True)
    files = write_texts(tmp_path / "texts", PARAGRAPHS[:9:3])
    shared, one, two = files

    def trained(name: str, *calls: list[Path]) -> gd.Network:
        for inputs in calls:
            gd.train(inputs, tmp_path / name, client=client, specification=replace(rule, regions=len(name)))
        return gd.open(tmp_path / name)

    whole, right = trained("w", files), trained("bb", [two, shared])
    if profile == "contexts":
        left, given = trained("a", [shared], [one]), {}
    else:
        left, given = trained("a", [shared, one]), {"texts": shared}
    together = gd.add([right, left], tmp_path / "new" / "sum", client=client, overlap="once", **given)
    assert together.digest() == whole.digest()
    assert together.manifest.sequences == whole.manifest.sequences
    assert together.manifest.tokens == whole.manifest.tokens
    assert {*reader_of(together).ledger()} == {*reader_of(whole).ledger()}
    assert_index_agrees(reader_of(together))
    assert [each.name for each in together.path.parent.iterdir()] == ["sum"]
    if profile == "contexts":
        # It can be subtracted like any other sum.
        assert gd.forget(together, shared, client=client).digest == trained("c", [one, two]).digest()
        return
    flat = left
    with pytest.raises(OptionError, match=r"1 of 2 parts .* no commit of these holds them"):
        gd.add([right, flat], tmp_path / "x", client=client, overlap="once")
    with pytest.raises(OptionError, match="not exactly that of texts"):
        gd.add([right, flat], tmp_path / "x", client=client, overlap="once", texts=one)
    some = gd.TrainingOptions(max_sequences=3)
    partly = gd.train(shared, tmp_path / "partly", client=client, specification=rule, options=some)
    with pytest.raises(OptionError, match="in part"):
        gd.add([right, partly], tmp_path / "x", client=client, overlap="once")
    assert not (tmp_path / "x").exists()


@only_contexts
def test_differences_of_contexts_are_named(trained: dict[str, gd.Network], client: Client) -> None:
    difference = gd.diff(trained["first"], trained["all"], client=client, largest=400)
    words = set(reader_of(trained["all"]).vocabulary().features)
    kinds = {kind.name: len(kind.parts) for kind in CONTEXTS}
    seen = set()
    for each in difference.largest:
        kind, _, name = each.source.partition(":")
        assert each.target in words
        assert kind == CONTEXTS[each.segment].name, "what contexts extend has no name"
        if kinds[kind] == 1:
            assert kind == "e1" or name in {*words, "beginning of a sentence"}
            seen.add(name)
    assert {"the", "beginning of a sentence"} <= seen
    assert [name for name in seen if name.startswith("-")], "endings of words"
    assert difference.connections["new"] > 400


@only_v1
def test_difference_counts_connections(trained: dict[str, gd.Network], client: Client) -> None:
    old, new = trained["without second"], trained["all"]
    difference = gd.diff(old, new, client=client, largest=4)
    opposite = gd.diff(new, old, client=client, largest=4)
    counts = difference.connections
    assert counts["gone"] == counts["weaker"] == 0
    assert counts["new"] == new.manifest.connections - old.manifest.connections
    assert counts["stronger"] + counts["equal"] == old.manifest.connections
    assert [opposite.connections[kind] for kind in ("gone", "weaker", "equal")] == [
        counts[kind] for kind in ("new", "stronger", "equal")
    ]
    assert [each.kind for each in difference.largest] == ["new"] * 4 + ["stronger"] * 4
    assert [-each.change for each in opposite.largest] == [each.change for each in difference.largest]
    changes = [each.change for each in difference.largest[:4]]
    assert changes == sorted(changes, reverse=True)
    frame = difference.to_pandas()
    assert list(frame["kind"].unique()) == ["new", "stronger"]
    assert json.loads(json.dumps(difference.as_dict()))["columns"] == difference.columns


@examples(1)
@given(
    documents=random_texts(3),
    rule=random_specifications(),
    order=st.permutations(range(3)),
    renumber=st.booleans(),
    regions=st.lists(st.integers(1, 3), min_size=3, max_size=3),
)
def test_sums_are_commutative_and_associative_and_forgetting_inverts_them(
    client: Client,
    tmp_path_factory: pytest.TempPathFactory,
    documents: list[str],
    rule: gd.Specification,
    order: list[int],
    renumber: bool,
    regions: list[int],
) -> None:
    folder = tmp_path_factory.mktemp("algebra")
    files = write_texts(folder / "texts", documents)
    parts = [
        gd.train(file, folder / file.stem, client=client, specification=replace(rule, regions=number))
        for file, number in zip(files, regions, strict=True)
    ]
    whole = gd.train(files[::-1], folder / "whole", client=client, specification=rule)
    # c + (a + b), in any order, against one training; then without one of them, and with it again.
    *both, last = order
    first = gd.add([parts[number] for number in both], folder / "first", client=client)
    total = gd.add([parts[last], first], folder / "total", client=client)
    assert total.digest() == whole.digest()
    report = gd.forget(total, files[last], client=client, renumber=renumber)
    assert (report.digest, report.digest_removed) == (first.digest(), parts[last].digest())
    again = gd.add([parts[last], gd.open(total.path)], folder / "again", client=client)
    assert again.digest() == whole.digest()
    if rule.trace:
        assert_index_agrees(reader_of(again))


@given(
    seed=st.integers(0, 10_000),
    count=st.integers(0, 300),
    concepts=st.integers(1, 60),
    features=st.integers(1, 5),
    sources=st.sampled_from([1, 60]),
    largest=st.booleans(),
    block=st.sampled_from([1, 7, 1 << 16]),
)
def test_renaming_keeps_every_connection(
    seed: int, count: int, concepts: int, features: int, sources: int, largest: bool, block: int
) -> None:
    rng = np.random.default_rng(seed)
    # From one column rows are so long that they are sorted by merging.
    columns = min(sources, concepts), concepts
    ends = [pack_neuron(rng.integers(0, most, count), rng.integers(0, features, count)) for most in columns]
    target = pack_target(rng.integers(0, 3, count), ends[1], rng.integers(0, 2, count))
    pairs = np.unique(np.stack([ends[0], target]), axis=1)
    source, length = np.unique(pairs[0], return_counts=True)
    pointer = np.concatenate([[0], np.cumsum(length)]).astype(np.int64)
    run = Run(source, pointer, pairs[1], rng.integers(1, 99, pairs.shape[1]).astype(np.int32))
    renaming = Renaming(rng.permutation(concepts), np.concatenate([[0], 1 + rng.permutation(features - 1)]))
    if largest:
        # Keys with as many bits as there are.
        renaming = Renaming(MAXIMUM_CONCEPTS - 1 - renaming.concepts, MAXIMUM_FEATURES - 1 - renaming.features)
    renamed = rename_run(run, renaming)

    def connections(run: Run, ids: Renaming | None) -> set[tuple[int, ...]]:
        column, feature = unpack_neuron(np.repeat(run.source, np.diff(run.pointer)))
        segment, neuron, branch = unpack_target(run.target)
        of_target = unpack_neuron(neuron)
        if ids is not None:
            column, feature = ids.concepts[column], ids.features[feature]
            of_target = ids.concepts[of_target[0]], ids.features[of_target[1]]
        return set(
            zip(*map(np.ndarray.tolist, (column, feature, segment, *of_target, branch, run.strength)), strict=True)
        )

    assert connections(renamed, None) == connections(run, renaming)
    assert len(renamed) == len(run)
    assert np.all(np.diff(renamed.source) > 0)
    for first, last in zip(renamed.pointer[:-1], renamed.pointer[1:], strict=True):
        assert np.all(np.diff(renamed.target[first:last]) > 0)
    # Packed, and divided among regions.
    found = rename_parts(pack(run), renaming, lambda source: unpack_neuron(source)[0] % 2, block=block)
    divided = {number: run_of_blocks([*blocks]) for number, blocks in found}
    undivided = rename_parts(pack(run), None, lambda source: 0 * source, block=block)
    whole = [run_of_blocks([*blocks]) for _, blocks in undivided]
    region = unpack_neuron(renamed.source)[0] % 2
    assert [*divided] == np.unique(region).tolist()
    for number, part in divided.items():
        assert arrays(part) == arrays(select_rows(renamed, np.flatnonzero(region == number)))
    assert [arrays(part) for part in whole] == [arrays(run)] * bool(len(run))
    if len(run):
        assert select_rows(renamed, np.arange(renamed.rows)).target.tolist() == renamed.target.tolist()


def test_a_strength_cannot_become_negative() -> None:
    def region(strength: int) -> PackedRegionRun:
        run = Run(np.array([3]), np.array([0, 2]), np.array([1, 2]), np.array([5, strength], np.int32))
        return PackedRegionRun(pack(run), pack(Run.empty()))

    left = unpack(subtract(2, None, region(4), region(2), region(5)).connections)
    assert (left.source.tolist(), left.target.tolist(), left.strength.tolist()) == ([3], [1, 2], [5, 1])
    assert subtract(1, None, region(4), region(4)).connections.connections == 0
    with pytest.raises(StoreDamagedError, match="1 connections would have a negative strength"):
        subtract(1, None, region(4), region(5))


@pytest.mark.parametrize(
    "options", [{"flags": "none"}, {"profile": "contexts", "flags": "canonical"},
                {"profile": "v2", "lif": False, "branches": 4, "branch_order": "random", "flags": "canonical"}]
)  # fmt: skip
def test_flags_that_cannot_be_canonical_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(SpecificationError):
        gd.Specification(**options)  # type: ignore[arg-type]
    assert "flags" not in gd.Specification(flags="history").as_dict()
    assert gd.Specification.from_dict(gd.Specification(flags="canonical").as_dict()).is_order_free


def test_a_new_network_is_canonical_where_it_can_be() -> None:
    assert gd.Specification().flags == gd.Specification(profile="v2").flags == "canonical"
    random = gd.Specification(profile="v2", lif=False, branches=4, branch_order="random")
    subwords = gd.Specification(profile="v2", tokens="subwords")
    assert random.flags == subwords.flags == gd.Specification(profile="contexts").flags == "history"
    with pytest.raises(SpecificationError, match=r"order of its text; .*of words instead of subwords"):
        subwords.require_order_free("it")
    stored = gd.Specification(flags="history").as_dict()
    assert gd.Specification.from_dict(stored).flags == "history", "stored without the field by earlier versions"


def test_what_was_made_with_flags_of_history_goes_on_with_them(
    client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history, path = gd.Specification(flags="history", regions=1), tmp_path / "net"
    gd.train([DOCUMENTS[0]], path, client=client, specification=history)
    gd.train([DOCUMENTS[1]], path, client=client, specification=gd.Specification(regions=1))
    file = tmp_path / "more.txt"
    file.write_text(DOCUMENTS[2], encoding="utf-8")
    assert run(["train", str(file), "--network", str(path), "--set", "regions=1", "--workers", "0"]) == 0
    assert gd.Network(path).specification.flags == "history"
    with pytest.raises(SpecificationError, match="flags=history; expected flags=canonical"):
        gd.train([DOCUMENTS[0]], path, client=client, specification=replace(history, flags="canonical"))
    capsys.readouterr()
    assert run(["train", str(file), "--network", str(path), "--flags", "canonical", "--workers", "0"]) == 2
    assert "--flags history; expected --flags canonical" in capsys.readouterr().err


def test_a_corpus_gives_a_new_network_its_flags(client: Client, tmp_path: Path) -> None:
    of, corpora, text = {"client": client}, {}, DOCUMENTS[0][:1500]
    for flags in ("canonical", "history"):
        rule = gd.Specification(flags=flags, regions=1)  # type: ignore[arg-type]
        corpora[flags] = gd.encode([text], tmp_path / flags, specification=rule, **of)
        given = None if flags == "history" else gd.Specification(regions=2)
        made = gd.train(corpora[flags].path, tmp_path / f"{flags}.network", specification=given, **of)
        assert made.specification.flags == flags
    for one, two in (("canonical", "history"), ("history", "canonical")):
        with pytest.raises(SpecificationError, match=f"encoded with flags={two}; expected flags={one}"):
            gd.train(corpora[two].path, tmp_path / f"{one}.network", **of)


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def call(*arguments: object) -> tuple[int, str, str]:
        code = run([*map(str, arguments)])
        return code, *capsys.readouterr()

    one, two, total = tmp_path / "one", tmp_path / "two", tmp_path / "total"
    for text, network in ((sample_text(), one), (sample_test_text(), two)):
        options = ("--set", "regions=2", "--workers", "0")
        assert call("train", text, "--network", network, *options)[0] == 0
    code, out, _ = call("add", one, two, "--out", total, "--json")
    assert (code, json.loads(out)["sequences"]) == (0, 445)
    code, out, _ = call("diff", one, total, "--largest", "1")
    assert code == 0
    assert "connections: " in out
    assert " -> " in out
    certificate = tmp_path / "certificate.json"
    code, out, _ = call("forget", total, "--document", sample_test_text(), "--purge", "--certificate", certificate)
    assert code == 0
    made = json.loads(certificate.read_text(encoding="utf-8"))
    assert call("digest", one)[1].strip() == call("digest", total)[1].strip() == made["digest"]
    assert call("digest", two)[1].strip() == made["digest_removed"]
    assert made["sequences"] == 40
    code, out, err = call("forget", total, "--document", sample_test_text())
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    code, _, err = call("add", one, total, "--out", tmp_path / "x")
    assert (code, "--overlap" in err) == (2, True)
    assert not (tmp_path / "x").exists()


def test_documents_are_named_by_their_identity(client: Client, tmp_path: Path) -> None:
    """Their text is read where training read it, and is refused with a reason where it is gone."""
    rule, files = gd.Specification(profile="contexts", trace=True, regions=1), []
    for number, text in enumerate(DOCUMENTS[:2]):
        files.append(tmp_path / f"{number}.txt")
        files[-1].write_text(text, encoding="utf-8")
    both = gd.train(gd.Files(map(str, files)), tmp_path / "both", client=client, specification=rule)
    alone = gd.train(files[0], tmp_path / "alone", client=client, specification=rule)
    plain = gd.train(DOCUMENTS[:1], tmp_path / "plain", client=client, profile="contexts")
    identity = reader_of(both).ledger()[-1].identity.hex()
    sentence = alone.trace(" ".join(DOCUMENTS[0].split()[:4]), max_tokens=1).tokens[0].connections[0].sentences[0]
    assert sentence.part == reader_of(alone).ledger()[0].identity.hex()
    for network, named, reason in (
        (both, [identity, str(files[0])], "1 identities and 1 inputs"),
        (both, ["ab" * IDENTITY_BYTES], "holds no part of text with the identity abab"),
        (plain, [reader_of(plain).ledger()[0].identity.hex()], "no place is known of"),
    ):
        with pytest.raises(OptionError, match=reason):
            gd.forget(network, gd.Files(named), client=client)
    files[1].write_text("Another text stands here now, as long as that one was.", encoding="utf-8")
    with pytest.raises(OptionError, match="does not hold the text of 1 documents as it was trained"):
        gd.forget(both, identity, client=client)
    with pytest.raises(OptionError, match="no identity of a document"):
        gd.forget(both, files[0], texts=files[0], client=client)
    copy = shutil.copytree(both.path, tmp_path / "copy")
    by_text = gd.forget(copy, identity, texts=DOCUMENTS[1:2], client=client)
    files[1].write_text(DOCUMENTS[1], encoding="utf-8")
    report = gd.forget(both, identity, client=client)
    assert (report.parts, report.digest) == ((identity,), alone.digest()) == (by_text.parts, by_text.digest)


@pytest.mark.parametrize("profile", ["v1", "contexts"])
def test_parts_of_a_corpus_are_forgotten_by_identity(
    profile: str, client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A network without an index is told where the text of its parts is: in a corpus, or in files of more text."""
    files = write_texts(tmp_path / "texts", DOCUMENTS)
    rule, network = specification(profile), tmp_path / "net"
    gd.train(files[:2], network, client=client, specification=rule)
    alone = gd.train(files[0], tmp_path / "alone", client=client, specification=rule)
    assert run(["inspect", str(network), "--parts", "--json"]) == 0
    parts = json.loads(capsys.readouterr().out)["parts"]
    assert parts == [each._asdict() for each in gd.open(network).text_parts()]
    assert parts[0] == alone.text_parts()[0]._asdict()
    assert sum(each["sequences"] for each in parts) == gd.open(network).manifest.sequences
    assert run(["inspect", str(network), "--parts"]) == 0
    assert f"part {parts[1]['identity']}  {parts[1]['sequences']:,} sequences" in capsys.readouterr().out
    command = ["forget", str(network), *(f"--document={each['identity']}" for each in parts[1:]), "--json"]
    assert run(command) == 2
    assert "--texts" in capsys.readouterr().err
    texts = str(tmp_path / "texts")
    if profile == "v1":
        texts = str(gd.encode(texts, tmp_path / "corpus", client=client, specification=rule).path)
    assert run([*command, "--texts", texts, "--certificate", str(tmp_path / "certificate")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["parts"] == sorted(each["identity"] for each in parts[1:])
    assert gd.open(network).digest() == found["digest"] == alone.digest()


@only_contexts
def test_changed_predictions_are_named_and_drawn(
    trained: dict[str, gd.Network], client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = trained["first"], trained["second"]
    prompts = ["The old miller", "The smith and the baker", "The young sister sold the"]
    difference = gd.diff(old, new, client=client, largest=2, prompts=prompts, max_tokens=3)
    continued = [[network.generate(prompt, max_tokens=3).text for prompt in prompts] for network in (old, new)]
    expected = [each for each in zip(prompts, *continued, strict=True) if each[1] != each[2]]
    assert [tuple(each) for each in difference.predictions] == expected
    assert 0 < len(expected) <= difference.prompts == 3
    assert json.loads(json.dumps(difference.as_dict()))["predictions"][0]["prompt"] == expected[0][0]
    assert gd.diff(old, old, client=client, prompts=prompts).predictions == ()
    assert gd.draw_difference(difference).axes[0].get_title(loc="left") == "connections"
    file, picture = tmp_path / "prompts.txt", tmp_path / "difference.svg"
    file.write_text("\n\n".join(prompts), encoding="utf-8")
    arguments = ("diff", old.path, new.path, "--prompts", file, "--max-tokens", "3", "--picture", picture, "--json")
    assert run([*map(str, arguments)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [tuple(each.values()) for each in found["predictions"]] == expected
    assert picture.read_bytes().startswith(b"<?xml")
    for wrong in (("--picture", tmp_path / "x.txt"), ("--prompts", tmp_path / "none")):
        assert run(["diff", str(old.path), str(new.path), *map(str, wrong)]) == 2
        assert capsys.readouterr().err.count("\n") == 1
