"""Tags and branches of a network name commits, keep them, and are trained on apart."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from distributed import Client

import giaann_dask as gd
from giaann_dask.cli import giaann_dask, run
from giaann_dask.cli.algebra import open_at_ref
from giaann_dask.data import sample_test_text, sample_text
from giaann_dask.errors import OptionError, StoreExistsError, StoreMissingError
from giaann_dask.store.network_store import NetworkStore

TEXTS = sample_test_text().read_text(encoding="utf-8").split("\n\n")[:3]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with gd.connect(workers=0) as made:
        yield made


@pytest.fixture(scope="module")
def trained(client: Client, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network with two commits besides the first, empty one."""
    path = tmp_path_factory.mktemp("trained") / "net"
    for text in TEXTS[:2]:
        gd.train([text], path, client=client, profile="contexts", regions=2)
    return path


@pytest.fixture
def network(trained: Path, tmp_path: Path) -> gd.Network:
    """A copy of the trained network, which a test may change."""
    return gd.open(shutil.copytree(trained, tmp_path / "net"))


def test_tags_stay_and_branches_move(network: gd.Network, client: Client) -> None:
    first = network.log()[1]
    gd.open(network, first.identity).tag("v1.0")
    gd.open(network, "v1.0").branch("other")
    main = gd.train([TEXTS[2]], network.path, client=client)
    other = gd.train([TEXTS[2]], network.path, client=client, branch="other")
    assert gd.open(network).commit == main.commit
    assert gd.open(network, "other").commit == other.commit
    assert gd.open(network, "v1.0").commit == first.identity
    assert main.manifest.sequences > other.manifest.sequences > gd.open(network, "v1.0").manifest.sequences
    assert [each.identity for each in other.log()[:2]] == [other.commit, first.identity]
    assert {(each.name, each.kind) for each in network.references()} == {
        ("main", "branch"),
        ("other", "branch"),
        ("v1.0", "tag"),
    }
    apart = gd.train([TEXTS[0]], network.path.parent / "apart", client=client, profile="contexts", regions=2)
    assert gd.train([TEXTS[2]], apart.path, client=client).digest() == other.digest()
    moments = [each.written_at for each in main.log()]
    assert moments == sorted(moments, reverse=True)


def test_tagged_commits_outlive_their_branch(network: gd.Network, client: Client) -> None:
    first = network.log()[1].identity
    store = NetworkStore(network.path)
    with store.lock():
        store.add_reference("tag", "kept", first)
        store.collect(keep_commits=1)
    kept = gd.open(network, "kept")
    assert (kept.commit, kept.manifest.connections > 0) == (first, True)
    one = gd.train([TEXTS[0]], network.path.parent / "one", client=client, profile="contexts", regions=2)
    assert kept.digest() == one.digest()
    with store.lock():
        store.remove_reference("tag", "kept")
        store.collect(keep_commits=1)
    with pytest.raises(StoreMissingError):
        gd.open(network, first)


def test_names_are_removed_by_their_kind(network: gd.Network) -> None:
    network.tag("one")
    network.branch("two")
    store = NetworkStore(network.path)
    with store.lock():
        for kind, name in (("branch", "one"), ("tag", "two"), ("branch", "main")):
            with pytest.raises(StoreMissingError, match=f"no {kind} '{name}'"):
                store.remove_reference(kind, name)  # type: ignore[arg-type]
        store.remove_reference("branch", "two")
        store.remove_reference("tag", "one")
    assert [each.name for each in network.references()] == ["main"]


def test_a_former_head_is_tagged_although_its_tag_was_removed(network: gd.Network) -> None:
    """Icechunk never gives the name of a tag twice."""
    first, store = network.log()[1].identity, NetworkStore(network.path)
    with store.lock():
        assert store.reset("main") is None
        names = []
        for _ in range(3):
            names.append(store.reset(first))
            store.reset(network.commit)
            store.remove_reference("tag", names[-1] or "")
    name = f"before-checkout-{network.commit}"
    assert names == [name, f"{name}-2", f"{name}-3"]
    assert f"before-checkout-{first}" in {each.name for each in network.references()}


def test_purging_removes_every_name(network: gd.Network, client: Client) -> None:
    network.tag("with-it")
    network.branch("side")
    gd.train([TEXTS[2]], network.path, client=client, branch="side")
    assert gd.forget(network, [TEXTS[1]], client=client, purge=True).purged_commits == 4
    assert [each.name for each in network.references()] == ["main"]
    with pytest.raises(StoreMissingError):
        gd.open(network.path, "with-it")


def test_names_are_given_once(network: gd.Network, client: Client) -> None:
    for name in ("", "a b", "-a", "../x", "A" * 20, "a" * 101, "é"):
        with pytest.raises(OptionError, match="the name"):
            network.tag(name)
    network.tag("one")
    with pytest.raises(StoreExistsError, match="'one'"):
        network.branch("one")
    with pytest.raises(StoreMissingError, match="no branch 'two'"):
        gd.train([TEXTS[2]], network.path, client=client, branch="two")
    with pytest.raises(StoreMissingError, match="no network"):
        gd.train([TEXTS[2]], network.path.parent / "new", client=client, branch="two")
    with pytest.raises(StoreMissingError):
        gd.open(network, "two")
    with pytest.raises(StoreMissingError, match="no commit, tag or branch two"):
        NetworkStore(network.path).log("two")
    assert not (network.path.parent / "new" / "refs").exists()


def test_every_command_that_reads_a_network_takes_a_reference(network: gd.Network) -> None:
    def below(group: click.Group) -> Iterator[tuple[str, set[str], set[str | None]]]:
        for name, command in group.commands.items():
            if isinstance(command, click.Group):
                yield from below(command)
            else:
                yield name, {each for param in command.params for each in param.opts}, {p.name for p in command.params}

    # These write, or name references as NETWORK@REF; the doctor looks at the last commit, and islands exchange it.
    others = {"train", "forget", "compact", "checkout", "nightly", "add", "diff", "doctor", "index", "unpersist"}
    others |= {"create", "join", "pack", "merge"}
    reading = {
        name: options
        for name, options, parameters in below(giaann_dask)
        if parameters & {"network", "networks", "old"} and name not in others
    }
    assert {"evaluate", "generate", "trace", "inspect", "export", "draw", "report", "serve", "prune"} <= set(reading)
    assert [name for name, options in reading.items() if "--ref" not in options] == []
    network.tag("here")
    for name in (str(network.path), f"{network.path}@here", f"{network.path}@{network.commit}"):
        assert open_at_ref(name).commit == gd.open(network.path, ref="here").commit == network.commit
    beside = network.path.rename(network.path.with_name("net@home"))
    assert open_at_ref(str(beside)).commit == network.commit


def test_documents_are_forgotten_on_a_branch(network: gd.Network, client: Client) -> None:
    network.branch("rest")
    report = gd.forget(network, [TEXTS[1]], client=client, branch="rest")
    alone = gd.train([TEXTS[0]], network.path.parent / "alone", client=client, profile="contexts", regions=2)
    assert gd.open(network.path, ref="rest").digest() == report.digest == alone.digest()
    assert gd.open(network.path).commit == network.commit
    with pytest.raises(OptionError, match="purge"):
        gd.forget(network, [TEXTS[0]], client=client, branch="rest", purge=True)
    # So text that two networks share is counted once.
    other = gd.train(TEXTS[1:2], network.path.parent / "other", client=client, profile="contexts", regions=2)
    total = gd.add([other, gd.open(network.path, ref="rest")], network.path.parent / "total", client=client)
    assert total.digest() == network.digest()


def test_commands(network: gd.Network, capsys: pytest.CaptureFixture[str]) -> None:
    def call(*arguments: object) -> tuple[int, str, str]:
        code = run([*map(str, arguments)])
        return code, *capsys.readouterr()

    path, (head, first, *_) = network.path, [each.identity for each in network.log()]
    assert call("tag", path, "old", "--ref", first)[0] == 0
    assert call("branch", path, "trial", "--ref", "old")[:2] == (0, f"{head}  main\n{first}  trial\n")
    assert call("tag", path)[1] == f"{first}  old\n"
    code, out, _ = call("log", path, "--json")
    commits = json.loads(out)["commits"]
    assert (code, [each["names"] for each in commits[:2]]) == (0, [["main"], ["trial", "tag old"]])
    assert call("log", path, "--ref", "old")[1].startswith(first)
    code, out, _ = call("inspect", path, "--ref", "trial", "--json")
    assert json.loads(out)["commit"] == first
    code, out, _ = call("diff", f"{path}@old", path)
    assert (code, "0 gone" in out) == (0, True)
    assert call("train", sample_text(), "--network", path, "--branch", "trial", "--workers", "0")[0] == 0
    assert NetworkStore(path).head() == head
    code, out, _ = call("checkout", path, "old", "--json")
    assert (code, json.loads(out)) == (0, {"commit": first, "former": f"before-checkout-{head}"})
    assert gd.open(path).commit == first
    assert gd.open(path, f"before-checkout-{head}").commit == head
    assert call("branch", path, "trial", "--delete")[1] == f"{first}  main\n"
    for arguments in (
        ("branch", path, "main", "--delete"),
        ("tag", path, "--delete"),
        ("tag", path, "x", "--ref", "none"),
        ("checkout", path, "none"),
        ("train", sample_text(), "--network", path, "--branch", "none", "--workers", "0"),
    ):
        code, out, err = call(*arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
