"""Networks that are trained apart and merged from bundles equal one training, to the byte of what is exported."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import pytest
from distributed import Client
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.random_sums import random_specifications, random_texts

import giaann_dask as gd
from giaann_dask.cli import run
from giaann_dask.data import sample_test_text, sample_text
from giaann_dask.errors import (
    InputFormatError,
    OptionError,
    SpecificationError,
    StoreDamagedError,
    StoreExistsError,
)
from giaann_dask.islands.definition import generate_key
from giaann_dask.store.manifest import Manifest
from giaann_dask.text.read_options import ReadOptions

PARAGRAPHS = sample_text().read_text(encoding="utf-8").split("\n\n")
BASE, REST = PARAGRAPHS[:3], PARAGRAPHS[3:24]
SMALL = gd.TextOptions(reading=ReadOptions(part_characters=1500))
# Few regions: what merging costs for small texts is tasks.
CANONICAL = {"flags": "canonical"}
RULES = {
    "v1": {**CANONICAL, "regions": 1},
    "v2": {**CANONICAL, "regions": 2, "self_transitions": True},
    "contexts": {"regions": 1},
}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with gd.connect(workers=0) as made:
        yield made


class Trained(NamedTuple):
    """Bundles of islands, the file and owner's network that they began with, and what one training gives."""

    folder: Path
    island: Path
    bundles: list[Path]
    digest: str

    def owner(self, path: Path) -> Path:
        """Return a copy of the owner's network, into which nothing has been merged."""
        return Path(shutil.copytree(self.folder / "owner", path))


def train_apart(
    client: Client,
    folder: Path,
    specification: gd.Specification,
    divided: Sequence[Sequence[str]],
    base: Sequence[str] = BASE,
) -> Trained:
    """Train an island on each list of texts, of which the first one packs twice."""
    names = [f"island{number}" for number in range(len(divided))]
    for name in names:
        generate_key(folder / f"{name}.key")
    gd.train(base, folder / "owner", client=client, specification=specification)
    island = folder / "village.island"
    gd.create_island(folder / "owner", island, {name: folder / f"{name}.key.pub" for name in names})
    bundles = []
    for number, (name, texts) in enumerate(zip(names, divided, strict=True)):
        gd.join_island(island, folder / name)
        halves = [texts[: len(texts) // 2], texts[len(texts) // 2 :]] if not number and len(texts) > 1 else [texts]
        for half in halves:
            gd.train(half, folder / name, client=client, text=SMALL)
            bundle = folder / f"{len(bundles)}.bundle"
            options = gd.PackOptions(offer_text=True, group_characters=2000)
            key = folder / f"{name}.key"
            report = gd.pack_bundle(
                folder / name, half, bundle, island=island, key=key, client=client, text=SMALL, options=options
            )
            assert report.complete == (half is halves[0])
            bundles.append(bundle)
    one = gd.train([*base, *chain(*divided)], folder / "one", client=client, specification=specification)
    return Trained(folder, island, bundles, one.digest())


@pytest.fixture(scope="module")
def trained(client: Client, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trained]:
    """Three islands by profile."""

    @functools.cache
    def build(profile: str) -> Trained:
        rule = gd.Specification(profile=profile, **RULES[profile])  # type: ignore[arg-type]
        return train_apart(client, tmp_path_factory.mktemp(profile), rule, [REST[at::3] for at in range(3)])

    return build


# The first example is of the first profile, in the order that is given here.
@examples(1)
@given(
    profile=st.sampled_from(["contexts", "v1", "v2"]),
    order=st.permutations([2, 0, 3, 1]),
    calls=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=2), min_size=1, max_size=1),
)
def test_any_order_and_repetition_equals_one_training(
    client: Client,
    tmp_path_factory: pytest.TempPathFactory,
    trained: Callable[[str], Trained],
    profile: str,
    order: list[int],
    calls: list[list[int]],
) -> None:
    made = trained(profile)
    owner = made.owner(tmp_path_factory.mktemp("owner") / "net")
    merged: set[int] = set()
    # Some of them in calls of their own, some twice, and in the end all.
    for numbers in [*calls, order]:
        reports = gd.merge_bundles(owner, [made.bundles[n] for n in numbers], island=made.island, client=client)
        for number, report in zip(numbers, reports, strict=True):
            assert bool(report.merged) == bool(report.commit) == (number not in merged)
            merged.add(number)
    network = gd.open(owner)
    assert network.digest() == made.digest
    assert network.manifest.exact
    assert len(network.commits()) == 2 + 4
    again = gd.merge_bundles(owner, made.bundles, island=made.island, client=client)
    assert [report.merged for report in again] == [0] * 4
    assert gd.open(owner).commit == network.commit


@examples(1)
@given(
    documents=random_texts(5),
    rule=random_specifications(trace=False),
    owners=st.lists(st.integers(0, 2), min_size=4, max_size=4),
    order=st.permutations(range(3)),
)
def test_any_islands_equal_one_training(
    client: Client,
    tmp_path_factory: pytest.TempPathFactory,
    documents: list[str],
    rule: gd.Specification,
    owners: list[int],
    order: list[int],
) -> None:
    """Of any specification, with any division of any texts, bundles that are named twice, and audited completely."""
    base, *rest = documents
    divided = [[text for text, owner in zip(rest, owners, strict=True) if owner == who] for who in order]
    folder = tmp_path_factory.mktemp("division")
    made = train_apart(client, folder, rule, base=[base], divided=[each for each in divided if each])
    bundles = [*made.bundles[::-1], made.bundles[0]]
    gd.merge_bundles(made.folder / "owner", bundles, island=made.island, audit=99, client=client)
    assert gd.open(made.folder / "owner").digest() == made.digest


# A merge that is killed between the commits of its second bundle and of its third one.
KILLED = """
import os, signal, sys
import giaann_dask as gd

def kill(event):
    if (getattr(event, "stage", ""), getattr(event, "done", 0)) == ("merge", 2):
        os.kill(os.getpid(), signal.SIGKILL)

with gd.connect(workers=0) as client:
    gd.merge_bundles(sys.argv[1], sys.argv[3:], island=sys.argv[2], client=client, observer=kill)
"""


def test_a_merge_that_was_killed_goes_on(client: Client, tmp_path: Path, trained: Callable[[str], Trained]) -> None:
    made = trained("contexts")
    owner = made.owner(tmp_path / "net")
    command = [sys.executable, "-c", KILLED, *map(str, (owner, made.island, *made.bundles))]
    assert subprocess.run(command, check=False, timeout=120).returncode == -signal.SIGKILL
    assert not gd.open(owner).manifest.exact
    held = gd.merge_bundles(owner, made.bundles[:2], island=made.island, client=client)
    assert [report.merged for report in held] == [0, 0]
    # Distinct connections are counted, which the killed merge had left for later.
    assert gd.open(owner).manifest.exact
    reports = gd.merge_bundles(owner, made.bundles, island=made.island, client=client)
    assert [bool(report.merged) for report in reports] == [False, False, True, True]
    assert gd.open(owner).digest() == made.digest


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.parametrize(("stage", "done"), [("verify", 2), ("merge", 1)])
def test_a_merge_goes_on_after_a_worker_was_lost(
    tmp_path: Path, trained: Callable[[str], Trained], stage: str, done: int
) -> None:
    """What was sent to a worker is sent again; regions of the network are read again."""
    made = trained("contexts")
    owner = made.owner(tmp_path / "net")
    killed: list[int] = []
    with gd.connect(workers=1) as cluster:

        def kill(event: object) -> None:
            if (getattr(event, "stage", ""), getattr(event, "done", 0)) == (stage, done) and not killed:
                killed.extend(cluster.run(os.getpid).values())
                os.kill(killed[0], signal.SIGKILL)

        gd.merge_bundles(owner, made.bundles, island=made.island, client=cluster, observer=kill)
        assert killed
    assert gd.open(owner).digest() == made.digest
    assert len(gd.open(owner).commits()) == 2 + 4


def test_packing_gives_the_same_bytes_on_other_networks(
    client: Client, tmp_path: Path, trained: Callable[[str], Trained]
) -> None:
    made = trained("v1")
    texts = REST[1::3]
    gd.join_island(made.island, tmp_path / "net")
    gd.train([PARAGRAPHS[30], *texts[1:]], tmp_path / "net", client=client, text=SMALL)
    bundle, key = tmp_path / "again.bundle", made.folder / "island1.key"
    with pytest.raises(OptionError, match="not at all"):
        gd.pack_bundle(tmp_path / "net", texts, bundle, island=made.island, key=key, client=client, text=SMALL)
    assert not list(tmp_path.glob("again*"))
    gd.train([*texts[:0:-1], texts[0]], tmp_path / "net", client=client, text=SMALL)
    options = gd.PackOptions(offer_text=True, group_characters=2000)
    report = gd.pack_bundle(
        tmp_path / "net", texts, bundle, island=made.island, key=key, client=client, text=SMALL, options=options
    )
    assert not report.complete
    assert bundle.read_bytes() == made.bundles[2].read_bytes()


def test_overlap(client: Client, tmp_path: Path, trained: Callable[[str], Trained]) -> None:
    made = trained("contexts")
    key = made.folder / "island1.key"
    gd.join_island(made.island, tmp_path / "both")
    halves = [REST[1::3], REST[2::3]]
    for texts in halves:
        gd.train(texts, tmp_path / "both", client=client, text=SMALL)
    path = tmp_path / "texts"
    path.mkdir()
    both, options = tmp_path / "both.bundle", gd.PackOptions(group_characters=1)
    for number, texts in enumerate(halves):
        (path / f"{number}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    gd.pack_bundle(
        tmp_path / "both", path, both, island=made.island, key=key, client=client, text=SMALL, options=options
    )
    owner = made.owner(tmp_path / "net")
    gd.merge_bundles(owner, made.bundles[2:3], island=made.island, client=client)
    before = gd.open(owner).commit
    with pytest.raises(OptionError, match="parts of text that the network or an earlier bundle holds"):
        gd.merge_bundles(owner, [both], island=made.island, client=client)
    assert gd.open(owner).commit == before
    (report,) = gd.merge_bundles(owner, [both], island=made.island, client=client, overlap="once")
    assert 0 < report.merged < report.groups
    gd.merge_bundles(owner, made.bundles, island=made.island, client=client, overlap="once")
    assert gd.open(owner).digest() == made.digest


def test_parts_without_sequences_are_left_out(client: Client, tmp_path: Path) -> None:
    """Nothing but their text would show that they are one's own; what they are in is forgotten as ever."""
    generate_key(tmp_path / "key")
    texts, island, key = tmp_path / "texts", tmp_path / "island", tmp_path / "key"
    texts.mkdir()
    for name, text in (("long", REST[0]), ("other", REST[1]), ("short", "A dog.")):
        (texts / f"{name}.txt").write_text(text, encoding="utf-8")
    rule = gd.Specification(flags="canonical", regions=1)
    gd.create_island(tmp_path / "owner", island, {"one": tmp_path / "key.pub"}, specification=rule)
    gd.join_island(island, tmp_path / "net")
    network = gd.train(texts, tmp_path / "net", client=client)
    options = gd.PackOptions(group_characters=1)
    report = gd.pack_bundle(network, texts, tmp_path / "bundle", island=island, key=key, client=client, options=options)
    assert (report.complete, report.groups, report.parts, len(network.text_parts())) == (True, 2, 2, 3)
    with pytest.raises(OptionError, match="without a long enough sequence"):
        gd.pack_bundle(network, texts / "short.txt", tmp_path / "none", island=island, key=key, client=client)
    gd.merge_bundles(tmp_path / "owner", [tmp_path / "bundle"], island=island, client=client)
    assert gd.open(tmp_path / "owner").digest() == network.digest()
    gd.forget(tmp_path / "owner", [texts / "long.txt", texts / "short.txt"], client=client)
    rest = gd.train(texts / "other.txt", tmp_path / "rest", client=client, specification=rule)
    assert gd.open(tmp_path / "owner").manifest.connections == rest.manifest.connections
    (texts / "again.txt").write_text(REST[0], encoding="utf-8")
    again = gd.pack_bundle(network, texts, tmp_path / "again", island=island, key=key, client=client)
    assert (again.complete, again.parts) == (True, 2)
    assert not [*tmp_path.glob("none*")]


def test_added_columns_stay_where_they_are(client: Client, tmp_path: Path) -> None:
    """A placement by use must not choose other regions for columns that were added, which have connections already."""
    rule = gd.Specification(flags="canonical", placement="balanced", regions=3)
    base, apart, later = (PARAGRAPHS[at::9] for at in range(3))
    generate_key(tmp_path / "key")
    island, key = tmp_path / "island", tmp_path / "key"
    gd.create_island(tmp_path / "owner", island, {"one": tmp_path / "key.pub"}, specification=rule)
    gd.train(base, tmp_path / "owner", client=client)
    gd.join_island(island, tmp_path / "net")
    gd.train(apart, tmp_path / "net", client=client)
    gd.add([tmp_path / "owner", tmp_path / "net"], tmp_path / "sum", client=client)
    gd.pack_bundle(tmp_path / "net", apart, tmp_path / "bundle", island=island, key=key, client=client)
    gd.merge_bundles(tmp_path / "owner", [tmp_path / "bundle"], island=island, client=client)
    one = gd.train([*base, *apart, *later], tmp_path / "one", client=client, specification=rule)
    for network in ("owner", "sum"):
        assert gd.train(later, tmp_path / network, client=client).digest() == one.digest()


def test_what_is_no_sum_is_not_packed(
    client: Client, tmp_path: Path, trained: Callable[[str], Trained], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = trained("v1")
    key = made.folder / "island1.key"
    out = tmp_path / "bundle"
    net = gd.train([REST[0]], tmp_path / "other", client=client, profile="contexts", regions=1)
    with pytest.raises(SpecificationError, match="specification of"):
        gd.pack_bundle(net, [REST[0]], out, island=made.island, key=key, client=client)
    rule = gd.Specification(flags="history", regions=1)
    history = gd.train([REST[0]], tmp_path / "history", client=client, specification=rule)
    with pytest.raises(SpecificationError, match="canonical"):
        gd.create_island(history.path, tmp_path / "x.island", {})
    generate_key(tmp_path / "unlisted")
    with pytest.raises(OptionError, match="path of a new file"):
        generate_key(Path(""))
    with pytest.raises(OptionError, match="key belongs to"):
        gd.pack_bundle(
            made.folder / "island1", REST[1::3], out, island=made.island, key=tmp_path / "unlisted", client=client
        )
    # Trained on its misses, a network is no sum over its text.
    gd.join_island(made.island, tmp_path / "misses")
    files = [tmp_path / f"{name}.jsonl" for name in ("first", "again")]
    for file, end in zip(files, ("", " A dog slept."), strict=True):
        file.write_text("".join(json.dumps({"text": text + end}) + "\n" for text in REST[:6]), encoding="utf-8")
    gd.train(files[0], tmp_path / "misses", client=client)
    gd.train(files[1], tmp_path / "misses", client=client, options=gd.TrainingOptions(train_on="misses"))
    with pytest.raises(SpecificationError, match="tokens that it missed"):
        gd.pack_bundle(tmp_path / "misses", files, out, island=made.island, key=key, client=client)
    with pytest.raises(SpecificationError, match="tokens that it missed"):
        gd.create_island(tmp_path / "misses", tmp_path / "x.island", {})
    # What the manifest does not say, the sum does.
    monkeypatch.setattr(Manifest, "require_sum", lambda *_: None)
    with pytest.raises(StoreDamagedError, match="not the sum"):
        gd.pack_bundle(tmp_path / "misses", files, out, island=made.island, key=key, client=client)
    assert not out.exists()
    with pytest.raises(StoreExistsError):
        gd.create_island(made.folder / "owner", made.island, {})
    with pytest.raises(InputFormatError, match="not an island file"):
        gd.join_island(sample_text(), tmp_path / "x")


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def call(*arguments: object) -> tuple[int, str, str]:
        code = run(["island", *map(str, arguments)])
        return code, *capsys.readouterr()

    monkeypatch.setenv("GIAANN_ISLAND_PASSPHRASE", "a secret")
    keys, bundles = {}, []
    for name in ("mill", "forge"):
        code, out, _ = call("key", tmp_path / name, "--json")
        assert code == 0
        keys[name] = json.loads(out)["key"]
    assert ((tmp_path / "mill").stat().st_mode & 0o777, b"ENCRYPTED" in (tmp_path / "mill").read_bytes()) == (
        0o600,
        True,
    )
    assert call("key", tmp_path / "mill")[0] == 2
    owner, file = tmp_path / "owner", tmp_path / "village.island"
    code, out, _ = call("create", owner, file, "--key", f"mill={tmp_path / 'mill.pub'}", "--set", "regions=1", "--json")
    assert (code, json.loads(out)["keys"]) == (0, {"mill": keys["mill"]})
    for name, text in (("mill", sample_text()), ("forge", sample_test_text())):
        assert call("join", file, tmp_path / f"{name}.net")[0] == 0
        network, bundle = tmp_path / f"{name}.net", tmp_path / f"{name}.bundle"
        assert run(["train", str(text), "--network", str(network), "--workers", "0"]) == 0
        pack = ("pack", network, text, "--island", file, "--key", tmp_path / name, "--out", bundle, "--workers", "0")
        if name == "forge":
            code, _, err = call(*pack)
            assert (code, "--key" in err, bundle.exists()) == (2, True, False)
            assert call("keys", file, "--key", f"forge={tmp_path / 'forge.pub'}")[0] == 0
        monkeypatch.setenv("GIAANN_ISLAND_PASSPHRASE", "wrong")
        assert call(*pack)[0] == 2
        monkeypatch.setenv("GIAANN_ISLAND_PASSPHRASE", "a secret")
        assert call(*pack)[0] == 0
        bundles.append(bundle)
    # An older commit gives the same bundle.
    before, again = gd.open(network).commit, tmp_path / "again.bundle"
    assert run(["train", str(sample_text()), "--network", str(network), "--workers", "0"]) == 0
    pack = ("pack", network, text, "--island", file, "--key", tmp_path / name, "--out", again, "--json")
    capsys.readouterr()
    assert json.loads(call(*pack)[1])["complete"] is False
    assert json.loads(call(*pack, "--ref", before)[1])["complete"] is True
    assert again.read_bytes() == bundle.read_bytes()
    merge = ("merge", owner, *bundles, "--island", file, "--workers", "0")
    code, _, err = call(*merge, "--audit", "1")
    assert (code, "--texts" in err, err.count("\n")) == (2, True, 1)
    assert len(gd.open(owner).commits()) == 1
    code, out, _ = call(*merge, "--audit", "1", "--texts", sample_text(), "--texts", sample_test_text(), "--json")
    reports = json.loads(out)["bundles"]
    assert (code, [(each["signer"], each["audited"]) for each in reports]) == (0, [("mill", [0]), ("forge", [0])])
    assert gd.open(owner).manifest.sequences == 445
    assert f"audited (seed {reports[0]['audit_seed']})" in gd.open(owner).commits()[0][1]
    code, out, _ = call(*merge)
    assert (code, out.count("holds all of it already")) == (0, 2)
    code, out, _ = call("show", bundles[0], "--island", file, "--json")
    assert (code, json.loads(out)["verified"]) == (0, True)
    assert call("show", bundles[0])[0] == call("show", file)[0] == 0
    empty = gd.open(owner).commits()[-1][0]
    code, out, _ = call("create", owner, tmp_path / "older.island", "--ref", empty, "--json")
    assert (code, json.loads(out)["commit"]) == (0, empty)
    assert call("join", tmp_path / "older.island", tmp_path / "older")[0] == 0
    assert gd.open(tmp_path / "older").manifest.features == gd.open(owner, empty).manifest.features
    code, _, err = call("create", tmp_path / "none", tmp_path / "none.island", "--ref", "v1")
    assert (code, "there is no network" in err) == (2, True)
    assert call("keys", file, "--remove", "mill")[0] == 0
    code, _, err = call("show", bundles[0], "--island", file)
    assert (code, "island keys" in err) == (2, True)
    whole = tmp_path / "whole"
    texts = [str(sample_text()), str(sample_test_text())]
    assert (
        run(["train", *texts, "--network", str(whole), "--set=flags=canonical", "--set=regions=1", "--workers=0"]) == 0
    )
    assert gd.open(whole).digest() == gd.open(owner).digest()
