"""Small networks and a corpus, damage to each of their files, and what is answered from them afterwards."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from distributed import Client

import giaann_dask as gd
from giaann_dask import EvaluationOptions, GenerationOptions
from giaann_dask.data import sample_text
from giaann_dask.errors import GiaannError
from giaann_dask.store.corpus import EncodedCorpus
from support.hostile_matrix import chance

NETWORKS = ("v1", "v2", "contexts")
STORES = (*NETWORKS, "corpus")
# Of a file, how often each is tried, at other places of the file.
KINDS = {"flip": 2, "truncate": 1, "empty": 1, "remove": 1, "swap": 1, "append": 1}
# The files that say what all the others are: a digit of theirs is a number that someone reads.
FLIPS_OF_INDEXES = 24
PROMPT = "The old miller carried the flour"
# What a store answers: by operation, a value to compare, or how it was refused.
Answers = dict[str, Any]


class Case(NamedTuple):
    """A kind of damage, for the n-th time, to a file of a store."""

    store: str
    file: str
    kind: str
    number: int

    @property
    def identity(self) -> str:
        return f"{self.store}/{self.file}:{self.kind}{self.number}"


class Refused(NamedTuple):
    """An operation that ended with an error of ours."""

    error: str


class Failed(NamedTuple):
    """An operation that ended in any other way."""

    trace: str


@dataclass(frozen=True)
class Stores:
    """Undamaged stores, and what they answer.

    Attributes
    ----------
    folder : Path
        Of all stores and of the texts that they were made of.
    expected : dict
        Answers by store.
    """

    folder: Path
    expected: Mapping[str, Answers]

    def cases(self, store: str, kind: str = "") -> list[Case]:
        """Return the cases of a store, or of one kind of damage to it, in an order that content decides."""
        files = sorted((self.folder / store).rglob("*"), key=lambda file: (file.parent, *content_order(file)))
        found = []
        for file in files:
            if file.is_file():
                for damage, times in KINDS.items():
                    if damage == "flip" and is_index(file):
                        times = FLIPS_OF_INDEXES
                    name = file.relative_to(self.folder / store).as_posix()
                    found += [Case(store, name, damage, number) for number in range(times) if kind in ("", damage)]
        return [case for case in found if case.kind != "swap" or partner_of(self.folder / store / case.file)]


def content_order(file: Path) -> tuple[int, bytes]:
    return (file.stat().st_size, file.read_bytes()) if file.is_file() else (-1, b"")


def is_index(file: Path) -> bool:
    return file.parent.name in ("snapshots", "corpus") or file.name == "ref.json"


def partner_of(file: Path) -> Path | None:
    """Return the file of the same kind that is most alike in size, and is not the same."""
    if file.parent.name == "c":
        others = file.parent.parent.parent.glob("*/c/0")
    elif file.name == "zarr.json":
        others = file.parent.parent.glob("*/zarr.json")
    else:
        others = file.parent.iterdir()
    content = file.read_bytes()
    found = [other for other in others if other != file and other.is_file() and other.read_bytes() != content]
    size = file.stat().st_size
    return min(found, key=lambda other: (abs(other.stat().st_size - size), other.name), default=None)


def build(folder: Path, client: Client) -> Stores:
    """Return the stores of a folder, made there where they are not, and what they answer."""
    if not (folder / "made").exists():
        lines = [line for line in sample_text().read_text(encoding="utf-8").splitlines() if line]
        texts = [folder / name for name in ("first.txt", "second.txt")]
        texts[0].write_text("\n".join(lines[:4]) + "\n", encoding="utf-8")
        texts[1].write_text("\n".join(lines[4:7]) + "\n", encoding="utf-8")
        for profile in NETWORKS:
            specification = gd.Specification(regions=2, profile=profile)
            for inputs in (texts[:1], texts):
                gd.train(inputs, folder / profile, client=client, specification=specification)
        gd.encode(texts, folder / "corpus", client=client)
        (folder / "made").touch()
    scratch = folder / "undamaged"
    scratch.mkdir(exist_ok=True)
    stores = Stores(folder, {})
    return Stores(folder, {store: answers(stores, store, folder / store, client, scratch) for store in STORES})


def answers(stores: Stores, store: str, path: Path, client: Client, scratch: Path) -> Answers:
    """Return what a store, or a damaged copy of it, answers to every operation."""
    operations = corpus_operations if store == "corpus" else network_operations
    return {name: attempted(operation) for name, operation in operations(stores, path, client, scratch)}


def attempted(operation: Callable[[], Any]) -> Any:
    try:
        return operation()
    except GiaannError as error:
        return Refused(f"{type(error).__name__}: {error}")
    except Exception:
        return Failed(traceback.format_exc())


def network_operations(
    stores: Stores, path: Path, client: Client, scratch: Path
) -> Iterator[tuple[str, Callable[[], Any]]]:
    def inspect() -> Any:
        network = gd.Network(path)
        return {**network.describe(), "bytes_on_disk": 0, "history": network.commits()}

    def generate() -> Any:
        options = GenerationOptions(max_tokens=2)
        return gd.Network(path).generate(PROMPT, client=client, options=options).as_dict()

    def evaluate() -> Any:
        network, text = gd.Network(path), stores.folder / "second.txt"
        if network.specification.profile == "contexts":
            return figures(network.score(text, client=client).as_dict())
        return figures(network.evaluate(text, client=client, options=EvaluationOptions(max_sequences=4)).as_dict())

    yield "inspect", inspect
    yield "export", lambda: exported(gd.Network(path), scratch)
    yield "generate", generate
    yield "evaluate", evaluate


def corpus_operations(
    stores: Stores, path: Path, client: Client, scratch: Path
) -> Iterator[tuple[str, Callable[[], Any]]]:
    def train_and_export() -> Any:
        network = gd.train(path, path.with_name("trained"), client=client)
        return exported(network, scratch)

    def evaluate() -> Any:
        return figures(gd.Network(stores.folder / "v1").evaluate(path, client=client).as_dict())

    yield "inspect", lambda: {**EncodedCorpus(path).describe(), "bytes_on_disk": 0}
    yield "export", train_and_export
    yield "evaluate", evaluate


def exported(network: gd.Network, scratch: Path) -> list[bytes]:
    return [file.read_bytes() for file in network.export(scratch / "x.npz")]


def figures(report: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value for name, value in report.items() if name not in ("seconds", "tokens_per_second", "rows", "stages")
    }


def damaged_copy(stores: Stores, case: Case, path: Path) -> None:
    """Put a copy of the case's store at a path, and damage it there; whole files are links to the originals."""
    original = stores.folder / case.store
    for file in original.rglob("*"):
        target = path / file.relative_to(original)
        if file.is_dir():
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(file, target)
    file, content = path / case.file, (original / case.file).read_bytes()
    if case.kind == "swap":
        other = partner_of(original / case.file)
        assert other is not None
        replace(path / other.relative_to(original), content)
        replace(file, other.read_bytes())
    elif case.kind == "remove":
        file.unlink()
    else:
        replace(file, changed(content, case))


def changed(content: bytes, case: Case) -> bytes:
    """Return the content of a file after damage that changes it alone."""
    choose = chance(case.kind, case.number, len(content))
    if case.kind == "flip":
        if not content:
            return b"\0"
        flipped = bytearray(content)
        flipped[choose.randrange(len(content))] ^= choose.randrange(1, 256)
        return bytes(flipped)
    if case.kind == "append":
        return content + choose.randbytes(choose.randint(1, 64))
    return content[: choose.randrange(len(content))] if case.kind == "truncate" and content else b""


def replace(file: Path, content: bytes) -> None:
    """Give a path new content, without changing the file that it is a link to."""
    file.unlink()
    file.write_bytes(content)
