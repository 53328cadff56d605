"""Documents of a server against a dictionary of texts: each text is counted once for all that have it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from starlette.testclient import TestClient
from support.examples import scaled
from test_documents import KeptClient, serving

import giaann_dask as gd
from giaann_dask.api.text_options import TextOptions
from giaann_dask.serving import documents
from giaann_dask.serving.documents import DocumentWriter
from giaann_dask.serving.models import SharedClient
from giaann_dask.text.read_options import ReadOptions
from giaann_dask.training.small_changes import SmallChanges

WRITE = {"Authorization": "Bearer writer"}
PATH = "/v1/documents"
# Paragraphs that are parts of their own, so that texts of several overlap.
PARAGRAPHS = [
    "The fisherman sold a lantern to the captain of the old ship in the harbour.",
    "The young baker found a silver coin in the river behind the mill of the village.",
    "The teacher read the letter to the children in the school before the evening.",
    "The grey heron stood in the shallow water of the river and waited for a fish.",
]
SMALL = TextOptions(reading=ReadOptions(part_characters=85))


@pytest.fixture(scope="module")
def clients() -> Iterator[SharedClient]:
    kept = KeptClient(lambda: gd.connect(workers=0))
    yield kept
    SharedClient.close(kept)


def new_network(clients: SharedClient, path: Path, paragraphs: list[int], profile: str = "contexts") -> gd.Network:
    with clients.use() as client:
        text = [text_of(paragraphs)]
        return gd.train(text, path, client=client, profile=profile, regions=1, text=SMALL)


def text_of(paragraphs: list[int]) -> str:
    return "\n\n".join(PARAGRAPHS[each] for each in paragraphs)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "TEXT", SMALL)


def add(http: TestClient, name: str, text: str) -> Any:
    return http.post(PATH, json={"id": name, "text": text}, headers=WRITE)


def remove(http: TestClient, name: str) -> Any:
    return http.request("DELETE", f"{PATH}/{name}", headers=WRITE).json()


def test_two_ids_of_one_text_count_it_once(clients: SharedClient, tmp_path: Path) -> None:
    network = new_network(clients, tmp_path / "net", [0])
    with serving(network.path, clients) as (http, _):
        lines = "".join(f'{{"id": "{name}", "text": "{PARAGRAPHS[1]}"}}\n' for name in ("one", "two"))
        added = http.post(PATH, content=lines, headers={**WRITE, "Content-Type": "application/x-ndjson"}).json()
        assert [each["shared_with"] for each in added["data"]] == [["two"], ["one"]]
        assert gd.open(network.path).manifest.sequences == 2
        first = remove(http, "one")
        assert (first["certificate"], first["kept"]["shared_with"]) == (None, ["two"])
        assert remove(http, "two")["certificate"]["sequences"] == 1
    assert gd.open(network.path).digest() == network.digest()


def test_of_texts_with_an_equal_beginning_each_part_goes_with_its_last_owner(
    clients: SharedClient, tmp_path: Path, small_parts: None
) -> None:
    network = new_network(clients, tmp_path / "net", [0])
    with serving(network.path, clients) as (http, _):
        for name, paragraphs in (("one", [1, 2]), ("two", [1, 3])):
            assert add(http, name, text_of(paragraphs)).status_code == 201
        removed = remove(http, "two")
        assert removed["certificate"]["sequences"] == 1
        assert removed["certificate"]["kept"] == {"shared_with": ["one"], "shared_parts": 1, "held_before": 0}
        assert gd.open(network.path).digest() == new_network(clients, tmp_path / "rest", [0, 1, 2]).digest()
        assert remove(http, "one")["certificate"]["sequences"] == 2
    assert gd.open(network.path).digest() == network.digest()


def test_what_the_network_had_before_stays(clients: SharedClient, tmp_path: Path) -> None:
    network = new_network(clients, tmp_path / "net", [0])
    with serving(network.path, clients) as (http, _):
        added = add(http, "known", PARAGRAPHS[0])
        assert (added.status_code, added.json()["held_before"]) == (201, 1)
        removed = remove(http, "known")
        assert (removed["deleted"], removed["certificate"], removed["kept"]["held_before"]) == (True, None, 1)
        assert gd.open(network.path).commit == network.commit


def test_a_text_without_an_id_is_named_by_its_title_and_listed_once(clients: SharedClient, tmp_path: Path) -> None:
    network = new_network(clients, tmp_path / "net", [0])
    with serving(network.path, clients) as (http, _):
        for _ in range(2):
            body = {"text": PARAGRAPHS[1], "metadata": {"title": "The silver coin"}}
            assert http.post(PATH, json=body, headers=WRITE).status_code == 201
        assert http.post(PATH, json={"text": PARAGRAPHS[2]}, headers=WRITE).status_code == 201
        names = [each["id"].rpartition("-")[0] for each in http.get(PATH).json()["data"]]
    assert names == ["The-silver-coin", "The-teacher-read-the-letter-to-the-children-in-the-school-be"]


class OwnedDocuments(RuleBasedStateMachine):
    """A writer, and a dictionary of the paragraphs of each document."""

    clients: SharedClient
    profile: str

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(mkdtemp())
        self.path = new_network(self.clients, self.folder / "net", [0], self.profile).path
        self.texts: dict[str, list[int]] = {}
        self.writer = self._opened()

    def _opened(self) -> DocumentWriter:
        return DocumentWriter(self.path, self.clients, lambda reader: None)

    def teardown(self) -> None:
        self.writer.close()
        shutil.rmtree(self.folder)

    @rule(texts=st.dictionaries(st.sampled_from("abcd"), st.lists(st.sampled_from(range(4)), min_size=1, max_size=3)))
    def add(self, texts: dict[str, list[int]]) -> None:
        fresh = {name: paragraphs for name, paragraphs in texts.items() if name not in self.texts}
        if fresh:
            self.writer.add([(name, text_of(paragraphs), {}) for name, paragraphs in fresh.items()])
        self.texts |= fresh

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), purge=st.booleans())
    def remove(self, data: st.DataObject, purge: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.texts)))
        document = self.writer.table.find(name)
        assert document is not None
        self.writer.remove(document, text_of(self.texts.pop(name)), purge=purge)

    @rule(texts=st.lists(st.sampled_from(range(4)), min_size=1, max_size=3), after=st.booleans())
    def interrupted(self, texts: list[int], after: bool) -> None:
        """As a process that is killed before or after it has committed a document leaves it."""
        if "killed" in self.texts:
            return
        patch = pytest.MonkeyPatch()
        put = self.writer.table.put

        def stopped(documents: Any, state: str) -> None:
            if state == "stored":
                raise KeyboardInterrupt
            put(documents, state)  # type: ignore[arg-type]

        with patch.context() as patched, suppress(KeyboardInterrupt):
            if after:
                patched.setattr(self.writer.table, "put", stopped)
            else:
                patched.setattr(documents, "train", _killed)
                patched.setattr(SmallChanges, "add", _killed)
                patched.setattr(self.writer.table, "put", stopped)
            self.writer.add([("killed", text_of(texts), {})])
        self.restart()
        if self.writer.table.find("killed") is not None:
            self.texts["killed"] = texts

    @rule()
    def restart(self) -> None:
        self.writer.close()
        self.writer = self._opened()
        self.writer.recover()

    @invariant()
    def the_network_holds_what_is_left(self) -> None:
        held = {0}.union(*self.texts.values())
        assert {each.id for each in self.writer.table.in_state("stored")} == self.texts.keys()
        # Meanwhile no purge removes the commit.
        with self.writer.turns.change():
            sequences, digest = gd.open(self.path).manifest.sequences, gd.open(self.path).digest()
        assert sequences == len(held)
        rest = self.folder / "rest" / "-".join(map(str, sorted(held)))
        whole = gd.open(rest) if rest.exists() else new_network(self.clients, rest, sorted(held), self.profile)
        assert digest == whole.digest()


def _killed(*arguments: Any, **keywords: Any) -> Any:
    raise KeyboardInterrupt


@pytest.mark.parametrize("profile", ["contexts", "v2"])
def test_documents_are_owned_as_a_dictionary_of_texts_says(
    clients: SharedClient, profile: str, small_parts: None
) -> None:
    OwnedDocuments.clients, OwnedDocuments.profile = clients, profile
    few = settings(max_examples=scaled(2), stateful_step_count=scaled(6), deadline=None, derandomize=scaled(2) == 2)
    run_state_machine_as_test(OwnedDocuments, settings=few)
