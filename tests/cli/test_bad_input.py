"""Bad input gives one clear line and exit code 2, and nothing stored before is lost."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from support.examples import scaled

import giaann_dask as gd
from giaann_dask.cli import run
from giaann_dask.data import sample_text
from giaann_dask.errors import PromptError

GOOD = "The old miller carried the flour to the baker before the sun rose over the hill.\n\n"


def command(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = run([str(argument) for argument in arguments])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    # Large enough that its chunks are files of their own, not parts of Icechunk's metadata.
    code = run(["train", str(sample_text()), "--network", str(folder / "net"), "--workers", "0"])
    assert code == 0
    return folder / "net"


def missing(folder: Path) -> Path:
    return folder / "missing.txt"


def write(name: str, content: bytes) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(content)
        return path

    return make


BAD_TEXT = {
    "missing": (missing, "missing.txt"),
    "empty": (write("empty.txt", b""), "empty.txt"),
    "white space": (write("blank.txt", b" \n \n\t\n"), "blank.txt"),
    "not UTF-8": (write("latin.txt", GOOD.encode() + b"caf\xe9 and more words here to read\n"), "UTF-8"),
    "NUL byte": (write("nul.txt", GOOD.encode() + b"a\x00b\n"), "NUL"),
    "one line of 10 MB": (write("long.txt", b"word " * 2_000_000), "long.txt"),
    "no nouns": (write("verbs.txt", b"And so they went and came and never quite really knew why.\n" * 5), "train"),
    "no long sentence": (write("short.txt", b"Go on. Come in. Sit.\n"), "long enough"),
    "bad CoNLL-U": (write("bad.conllu", b"1\tword\n\n"), "bad.conllu"),
    "bad JSON": (write("bad.jsonl", b'{"text": "fine words"}\n{oops\n'), "bad.jsonl"),
    "a PDF that is ASCII": (write("paper.pdf", b"%PDF-1.4\n" + GOOD.encode()), "a PDF document; expected text"),
    "bad gzip": (write("bad.txt.gz", b"\x1f\x8b\x08\x00broken"), "bad.txt.gz"),
}


@pytest.mark.parametrize(
    ("name", "existing"),
    [case for at, case in enumerate(product(BAD_TEXT, (False, True))) if at % 4 in (0, 3) or scaled(1) > 1],
)
def test_bad_text(capsys: pytest.CaptureFixture[str], tmp_path: Path, network: Path, name: str, existing: bool) -> None:
    make, said = BAD_TEXT[name]
    target = tmp_path / "net"
    if existing:
        shutil.copytree(network, target)
        before = command(capsys, "inspect", target, "--json")[1]
    code, out, err = command(capsys, "train", make(tmp_path), "--network", target, "--workers", "0")
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1, err
    assert said in err
    if existing:
        now, then = (json.loads(s) for s in (command(capsys, "inspect", target, "--json")[1], before))
        assert {**now, "bytes_on_disk": 0} == {**then, "bytes_on_disk": 0}
    else:
        assert not target.exists(), "a failed first training leaves nothing behind"


def damage_snapshot(network: Path) -> None:
    for file in (network / "snapshots").iterdir():
        file.write_bytes(b"damaged")


def damage_chunks(network: Path) -> None:
    for file in (network / "chunks").iterdir():
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 0xFF
        file.write_bytes(bytes(data))


def damage_manifests(network: Path) -> None:
    for file in (network / "manifests").iterdir():
        file.unlink()


@pytest.mark.parametrize("damage", [damage_snapshot, damage_chunks, damage_manifests])
def test_damaged_network(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, network: Path, damage: Callable[[Path], None]
) -> None:
    shutil.copytree(network, tmp_path / "net")
    damage(tmp_path / "net")
    code, out, err = command(capsys, "export", tmp_path / "net", "--out", tmp_path / "x.npz")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1, err
    assert not (tmp_path / "x.npz").exists()


def test_network_of_another_version(capsys: pytest.CaptureFixture[str], tmp_path: Path, network: Path) -> None:
    import zarr

    from giaann_dask.store.network_store import NetworkStore

    shutil.copytree(network, tmp_path / "net")
    session = NetworkStore(tmp_path / "net").begin()
    zarr.open_group(session.store, mode="a").attrs["version"] = 99
    session.commit("from the future")
    for arguments in (["inspect", tmp_path / "net"], ["generate", tmp_path / "net", "the miller"]):
        code, out, err = command(capsys, *arguments)
        assert (code, out) == (2, "")
        assert "version 99" in err
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["inspect", "nowhere"], "no network"),
        (["train", "GOOD"], "--network"),
        (["train", "GOOD", "--network", "", "--workers", "0"], "'--network': an empty name"),
        (["train", "GOOD", "--network", "NEW", "--workers", "100000"], "--workers is 100000; expected at most 1024"),
        (["cluster", "--storage", "100000"], "--storage is 100000; expected at most 1024"),
        (["tag", "NET", "none", "--delete"], "but there is none"),
        (["evaluate", "NET", "x.txt", "--timing", "sometimes"], "exact"),
        (["train", "GOOD", "--network", "NET", "--set", "seed_tokens=12"], "--set seed_tokens"),
        (["train", "GOOD", "--network", "NEW", "--set", "seed_tokens=5", "--workers", "0"], "--set seed_tokens"),
        (["train", "GOOD", "--network", "NEW", "--tagger", "nobody", "--workers", "0"], "nobody"),
        (["train", "GOOD", "--network", "NEW", "--tagger", "gold", "--workers", "0"], "CoNLL-U"),
        (["train", "GOOD", "--network", "NEW", "--ever-pos", "none.json", "--workers", "0"], "none.json"),
        (["train", "GOOD", "--network", "GOOD", "--workers", "0"], "not a network"),
        (["train", "GOOD", "--network", "NEW", "--tokenizer", "x.json", "--workers", "0"], "leave --tokenizer out"),
        (["generate", "NET", "quickly and slowly", "--workers", "0"], "noun"),
        (["generate", "NET", "", "--workers", "0"], "prompt"),
        (["inspect", "NET", "--ref", "NOSUCHCOMMIT"], "commit"),
        (["evaluate", "NET", "GOOD", "--first-sequence", "999", "--workers", "0"], "--first-sequence"),
        (["draw", "NET", "--out", "x.bmp"], "svg"),
        (["draw", "NET", "--out", "x.svg", "--concepts", "millr"], "miller"),
        (["compact", "NET", "--scheduler", "tcp://127.0.0.1:1", "--workers", "2"], "one of them"),
        # As Python makes them of arguments that are not UTF-8.
        (["generate", "NET", "The old \udcff miller", "--workers", "0"], "not UTF-8, at character 8"),
        (["generate", "NET", "The old miller", "--tagger", "\udcff"], "tagger"),
        (["draw", "NET", "--out", "x.svg", "--prompt", "The old miller \udcff"], "prompt"),
        (["draw", "NET", "--out", "x.svg", "--concepts", "\udcff"], "concept"),
        (["train", "GOOD", "--network", "new\udcff", "--workers", "0"], "path in UTF-8"),
        (["train", "GOOD", "--network", "NEW", "--tagger", "\udcff", "--workers", "0"], "tagger"),
        (["evaluate", "NET", "GOOD", "--tagger", "spacy:\udcff", "--workers", "0"], "tagger"),
        (["serve", "NET", "--host", "\udcff"], "API key"),
        (["serve", "NET", "--model-name", "\udcff"], "model's name"),
    ],
)
def test_bad_options(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    network: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.txt").write_text(GOOD, encoding="utf-8")
    names = {"NET": str(network), "NEW": str(tmp_path / "new"), "GOOD": str(tmp_path / "good.txt")}
    code, out, err = command(capsys, *(names.get(a, a) for a in arguments))
    assert (code, out) == (2, ""), err
    assert said in err
    assert err.count("\n") == 1, err
    assert not [*tmp_path.glob("new*")]


def test_prompts_that_are_no_text(network: Path) -> None:
    opened = gd.Network(network)
    for wrong in ("The old miller \ud83d", "The old\0 miller", b"The old miller", None):
        with pytest.raises(PromptError, match="prompt"):
            opened.generate(wrong)  # type: ignore[arg-type]
        with pytest.raises(PromptError, match="prompt"):
            opened.pictures.predict(wrong)  # type: ignore[arg-type]
        with opened.sessions(["The old miller", wrong]) as sessions:  # type: ignore[list-item]
            pieces = list(sessions)
        assert [piece.number for piece in pieces if piece.error is not None] == [1]
        assert [piece for piece in pieces if piece.number == 0][-1].finished, "the others go on"


def test_names_of_files_need_not_be_utf_8(capsys: pytest.CaptureFixture[str], tmp_path: Path, network: Path) -> None:
    text, out = tmp_path / "caf\udce9.txt", tmp_path / "na\udcefve.npz"
    shutil.copy(sample_text(), text)
    code, shown, err = command(capsys, "encode", text, "--out", tmp_path / "c", "--workers", "0", "--json")
    assert (code, json.loads(shown)["corpus"]) == (0, str(tmp_path / "c")), err
    code, _, err = command(capsys, "encode", text, "--out", tmp_path / "c\udcff", "--workers", "0")
    assert (code, "a path in UTF-8" in err, (tmp_path / "c\udcff").exists()) == (2, True, False)
    code, shown, err = command(capsys, "export", network, "--out", out)
    assert code == 0, err
    assert "na\\udcefve.npz" in shown
    assert out.exists()
