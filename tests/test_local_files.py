"""Names of files with ``~`` and ``file://``, and byte order marks, wherever a user names or writes a file."""

from __future__ import annotations

import itertools
import json
import os
import pwd
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from support.village import write_village

import giaann_dask as gd
from giaann_dask.cli import giaann_dask as commands
from giaann_dask.cli import run
from giaann_dask.cli.algebra import open_at_ref, read_prompts
from giaann_dask.cli.serving import NamedNetwork
from giaann_dask.cli.shared_options import FILE_PATH, NETWORK_PATH, WRITTEN_PATH, read_toml
from giaann_dask.cluster.connecting import connect
from giaann_dask.diagnostics.evaluation_report import save_report
from giaann_dask.encoding.lexicon import save_tokenizer
from giaann_dask.errors import GiaannError, InputEncodingError, InputFormatError, OptionError
from giaann_dask.islands.definition import generate_key, read_private_key, read_public_key
from giaann_dask.local_files import is_there, local_name, local_path, read_utf8
from giaann_dask.object_urls import StorageOptions, object_path
from giaann_dask.spec import Specification
from giaann_dask.store.corpus import EncodedCorpus, is_corpus
from giaann_dask.store.places import StorePlace
from giaann_dask.text.ever_pos import EverPos
from giaann_dask.text.reading import read_parts
from giaann_dask.text.tokenizer import SubwordTokenizer
from giaann_dask.workflows.history import history_of, lock_of

MARK = "\ufeff"
ODD = "a b%[1]#é?.txt"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home folder; at the end no folder or file of the working directory may have a name of ours."""
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    # Compiled code is where it was.
    monkeypatch.setenv("XDG_CACHE_HOME", os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "work")
    yield tmp_path / "home"
    assert not [name for name in os.listdir() if name.startswith(("~", "file"))]


def test_names(home: Path) -> None:
    own = pwd.getpwuid(os.getuid())
    for given, expected in (
        ("~", f"{home}"),
        ("~/a/b c", f"{home}/a/b c"),
        (Path("~/a"), f"{home}/a"),
        (f"~{own.pw_name}/a", f"{own.pw_dir}/a"),
        ("a/~/b", "a/~/b"),
        ("./~", "./~"),
        ("~no-such-user", "~no-such-user"),
        ("file:///a%20b/%C3%A9", "/a b/é"),
        ("file://localhost/a", "/a"),
        ("FILE:/a%2520b", "/a%20b"),
        (Path("file:///a%20b"), "/a b"),
        ("file:///a b#c?d%", "/a b#c?d%"),
        ("file:///%FF", os.fsdecode(b"/\xff")),
        ("file:a", "file:a"),
        ("s3://bucket/~/a%20b", "s3://bucket/~/a%20b"),
        ("https://host/%20", "https://host/%20"),
        ("hf:name", "hf:name"),
        ("", ""),
    ):
        assert local_name(given) == expected
        assert local_name(local_name(given)) == expected
        assert local_path(given) == Path(expected)
    odd = home / ODD
    assert local_path(odd.as_uri()) == odd
    url = object_path("s3://bucket/a", StorageOptions(region="x"))
    assert local_path(url) is url
    assert local_name(url).options.region == "x"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("file://host/a", "names the host 'host'.*file:///PATH"),
        ("file://a", "names the host 'a'"),
        ("file:///a%00b", "holds a NUL byte"),
        ("~no-such-user/a", "home folder in '~no-such-user/a' is not known"),
    ],
)
def test_names_that_lead_nowhere(home: Path, name: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    for receive in (local_name, gd.open, gd.Files, read_parts, FILE_PATH, NETWORK_PATH):
        with pytest.raises(OptionError, match=message):
            receive(name)  # type: ignore[operator]
    assert run(["inspect", name]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def every_command(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        yield " ".join((*path, name)), command
        if isinstance(command, click.Group):
            yield from every_command(command, (*path, name))


def test_every_path_of_every_command_is_resolved() -> None:
    """A type of click for paths, which leaves names as they are, belongs to no option."""
    paths = []
    for name, command in every_command(commands):
        for option in command.params:
            assert not isinstance(option.type, click.Path), (name, option.name)
            assert type(option.type) is not click.File, (name, option.name)
            if option.type in (FILE_PATH, NETWORK_PATH):
                paths.append((name, option.name))
    assert len(paths) > 40
    # Those that may be another word, and are resolved where they are read.
    texts = {"ever_pos", "tokenizer", "scheduler_file", "keys", "inputs", "evaluate", "documents", "texts", "networks"}
    for name, command in every_command(commands):
        for option in command.params:
            metavar = option.metavar or ""
            if option.type is click.STRING and any(word in metavar for word in ("FILE", "PATH", "FOLDER", "PUBLIC")):
                assert option.name in texts, (name, option.name)


def spellings(network: Path) -> list[str]:
    """Return names of a network in the working directory, one of them by a link; the first one is absolute."""
    link = network.with_name("link")
    link.unlink(missing_ok=True)
    link.symlink_to(network.name)
    relative = os.path.relpath(network)
    names = [str(network), relative, f"./{relative}", f"{relative}/", f"{relative}//.", f"../{Path.cwd().name}/link"]
    return [*names, f"~/../{Path.cwd().name}/{relative}", network.as_uri(), f"{network.as_uri()}/"]


def test_every_command_resolves_the_name_of_a_network_in_one_place(home: Path) -> None:
    network = Path.cwd() / "my net"
    network.mkdir()
    resolved = []
    for command, option in ((name, option) for name, each in every_command(commands) for option in each.params):
        if option.type in (NETWORK_PATH, WRITTEN_PATH) or isinstance(option.type, NamedNetwork):
            assert {str(option.type.convert(name, option, None)) for name in spellings(network)} <= {
                str(network),
                str((None, network)),
            }, (command, option.name)
            resolved.append((command, option.name))
        elif "network" in f"{option.name} {option.metavar}".lower() and option.type is not FILE_PATH:
            # The former may have @REF, the latter are sizes.
            assert command in ("add", "diff") or option.name.endswith("bytes"), (command, option.name)
    assert len(resolved) > 30
    for name in spellings(network):
        assert history_of(Path(name)) == Path.cwd() / "my net.history.jsonl"
        assert lock_of(Path(name)) == Path.cwd() / "my net.lock"
    write_village(home / ODD, 10)
    assert run(["train", str(home / ODD), "--network", "new net", "--workers=0"]) == 0
    new = Path.cwd() / "new net"
    for name in spellings(new):
        assert open_at_ref(f"{name}@main").path == open_at_ref(name).path == gd.open(name).path == new


def test_the_python_interface(home: Path) -> None:
    spelled = itertools.cycle(
        (lambda name: f"~/{name}", lambda name: (home / name).as_uri(), lambda name: Path("~") / name)
    )

    def named(name: str) -> Any:
        """Name a file in another way each time."""
        return next(spelled)(name)

    write_village(named(ODD), 40)
    assert (home / ODD).is_file()
    lexicon = home / "ever pos.json"
    lexicon.write_text(MARK + json.dumps({"ADP": ["to", "in", "by", "at", "on", "of", "the", "and"]}))
    (home / "my list").write_text(f"{MARK}# {MARK}\n{named(ODD)}\n", encoding="utf-8")
    text = gd.TextOptions(ever_pos=str(named("ever pos.json")))
    with gd.connect(workers=0):
        corpus = gd.encode(named(ODD), named("my corpus"), text=text)
        network = gd.train(gd.Files([f"@{named('my list')}"]), named("nets/one"), text=text)
        assert network.path == home / "nets/one"
        for known in (corpus, Path(named(ODD)), named("my corpus")):
            assert gd.train(known, named("nets/one")).training_report.sequences == 0
        report = network.evaluate(gd.Files([named(ODD)]))
        assert gd.new_inputs(named("my corpus"), named("nets/one"))[0].new_characters == 0
    assert gd.open(named("nets/one")).commit == network.commit
    assert is_corpus(str(named("my corpus")))
    assert EncodedCorpus(named("my corpus")).identity == corpus.identity
    network.export(named("my export.npz"))
    network.report().save(named("my report.html"))
    save_report(report, named("my evaluation.html"))
    network.pictures.save_page(named("my page.html"))
    network["miller"].to_zarr(named("my column"))
    for name in (
        "my export.npz",
        "my export.json",
        "my report.html",
        "my evaluation.html",
        "my page.html",
        "my column",
    ):
        assert (home / name).exists(), name
    assert StorePlace(str(named("nets/one"))).exists()
    assert history_of(Path(named("nets/one"))) == home / "nets/one.history.jsonl"
    assert history_of(Path("net"), Path(named("h.jsonl"))) == home / "h.jsonl"
    assert lock_of(Path(named("nets/one"))) == home / "nets/one.lock"


def test_files_of_settings_and_keys(home: Path) -> None:
    pytest.importorskip("cryptography", reason="needs the extra islands")
    public = generate_key(Path("~/my key"))
    key = home / "my key.pub"
    assert read_public_key(local_path(key.as_uri())) == public
    key.write_bytes(MARK.encode() + key.read_bytes())
    assert read_public_key(key) == public
    (home / "my key").write_bytes(MARK.encode() + (home / "my key").read_bytes())
    read_private_key(home / "my key")
    network = home / "net"
    island = gd.create_island("~/net", "~/my island", {"mill": key.as_uri(), "river": "ab" * 32})
    assert island.keys["mill"] == public
    stored = home / "my island"
    stored.write_text(MARK + stored.read_text(encoding="utf-8"), encoding="utf-8")
    gd.join_island(stored.as_uri(), "~/joined")
    assert network.is_dir()
    assert (home / "joined").is_dir()
    assert StorageOptions(service_account="~/account.json").service_account == str(home / "account.json")


def test_a_scheduler_file(home: Path) -> None:
    file = home / "my scheduler.json"
    for content, message in (
        (MARK + "{}", "names no address"),
        (MARK + '{"address": "tcp://127.0.0.1:1"}', "responds at"),
    ):
        file.write_text(content, encoding="utf-8")
        for name in ("~/my scheduler.json", file.as_uri()):
            with pytest.raises(GiaannError, match=message):
                connect(options=gd.ClusterOptions(scheduler_file=name, connect_timeout_s=0.2))


def test_a_tokenizer(home: Path) -> None:
    pytest.importorskip("tokenizers", reason="needs the extra subwords")
    learnt = SubwordTokenizer.learn(["the old miller carried the flour"] * 9, 300)
    save_tokenizer(learnt, Path("~/my tokenizer.json"))
    file = home / "my tokenizer.json"
    file.write_text(MARK + file.read_text(encoding="utf-8"), encoding="utf-8")
    for name in ("~/my tokenizer.json", file.as_uri()):
        assert SubwordTokenizer.from_file(name).identity() == learnt.identity()


def test_commands(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_village(home / ODD, 30)
    (home / "my spec.toml").write_text(f"{MARK}seed_tokens = 6\n", encoding="utf-8")
    train = ["train", f"--network={(home / 'my net').as_uri()}", "--specification=~/my spec.toml", "--workers=0"]
    assert run([*train, "--events=~/my events", f"~/{ODD}"]) == 0
    evaluate = ["evaluate", "~/my net", (home / ODD).as_uri(), "--workers=0", "--report=~/my report.html"]
    assert run([*evaluate, f"--events={(home / 'other events').as_uri()}"]) == 0
    assert run(["export", "~/my net", "--out=~/my export.npz"]) == 0
    for name in ("my events", "other events", "my report.html", "my export.npz"):
        assert (home / name).stat().st_size > 0
    assert open_at_ref("~/my net").specification == Specification(seed_tokens=6)
    assert open_at_ref((home / "my net").as_uri() + "@main").commit
    settings = home / "my settings.toml"
    settings.write_text(
        f"{MARK}[nightly]\nnetwork = '~/my net'\ntext = ['{(home / ODD).as_uri()}']\nsettle-s = 0\n"
        f"history = '~/my history'\nspecification = '~/my spec.toml'\n",
        encoding="utf-8",
    )
    assert run(["job", "nightly", "--config=~/my settings.toml", "--workers=0"]) == 0, capsys.readouterr().err
    assert len((home / "my history").read_text(encoding="utf-8").splitlines()) == 1


def test_byte_order_marks(tmp_path: Path) -> None:
    file = tmp_path / "file"
    for content, expected in ((f"{MARK}a\n{MARK}b{MARK}{MARK}c\n", ["a", "bc"]), (MARK, [])):
        file.write_text(content, encoding="utf-8")
        assert read_utf8(file).split() == expected == read_prompts(file)
    file.write_text(f"{MARK}a = 1\n{MARK}[b]\n", encoding="utf-8")
    assert read_toml(file, "--config") == {"a": 1, "b": {}}


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "latin1"])
def test_other_encodings_are_refused(encoding: str, tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    file.write_bytes((b"\xfe\xff" if encoding == "utf-16-be" else b"") + '{"VERB": ["é"]}'.encode(encoding))
    name = "LATIN1" if encoding == "latin1" else "UTF-16"
    for read in (read_utf8, read_prompts, lambda path: read_toml(path, "--config")):
        with pytest.raises(InputEncodingError, match=f"is not UTF-8.*iconv -f {name}"):
            read(file)
    for read_json in (EverPos.from_json, SubwordTokenizer.from_file):
        with pytest.raises(InputFormatError, match=f"is not UTF-8.*iconv -f {name}"):
            read_json(file)
    with pytest.raises(GiaannError, match=f"is not UTF-8.*iconv -f {name}"):
        list(read_parts([f"@{file}"]))


def test_what_cannot_be_known_to_be_there_is_an_error(tmp_path: Path) -> None:
    """A network in a folder that may not be entered is not told to be missing."""
    with pytest.raises(OSError, match="too long"):
        is_there(tmp_path / ("a" * 300) / "refs")
