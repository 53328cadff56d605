"""Test a model of one's own: what all models have to keep, as a test class to inherit.

Needs pytest, and starts two worker processes once. Texts are invented and small.

    class TestSkipBigrams(ModelTests):
        profile = "skip-bigrams"
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from distributed import Client

import giaann_dask as gd
from giaann_dask.cli import run
from giaann_dask.data import sample_text
from giaann_dask.errors import MissingDependencyError, SpecificationError
from giaann_dask.events import Observer, ignore
from giaann_dask.keys import pack_target
from giaann_dask.models.generation_options import BatchOptions
from giaann_dask.registry import clear_models, find_model, module_of
from giaann_dask.runs.merging import merge_runs
from giaann_dask.runs.packing import unpack
from giaann_dask.serving.app import build_app
from giaann_dask.serving.models import EngineOpener, Models, ModelSource, SharedClient
from giaann_dask.serving.serving_options import ServingOptions
from giaann_dask.store.network_store import NetworkStore

_DOCUMENTS, _LINES = 3, 4


class ModelTests:
    """Tests of a model: the same bytes whatever happens in training, and whatever users do with its networks.

    Attributes
    ----------
    profile : str
        Name of the model's entry point, or its import path.
    model_options : mapping
        Options of the model; its defaults by default.
    """

    profile: ClassVar[str]
    model_options: ClassVar[Mapping[str, Any]] = {}

    @pytest.fixture(scope="class")
    @classmethod
    def client(cls) -> Iterator[Client]:
        """Return the client of a cluster in this process."""
        with gd.connect(workers=0) as client:
            yield client

    @pytest.fixture(scope="class")
    @classmethod
    def documents(cls, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
        """Return the files of some documents."""
        lines = sample_text().read_text(encoding="utf-8").splitlines()
        folder, found = tmp_path_factory.mktemp("documents"), []
        for number in range(_DOCUMENTS):
            found.append(folder / f"{number}.txt")
            chosen = lines[number * _LINES : (number + 1) * _LINES]
            found[-1].write_text("\n".join(chosen) + "\n", encoding="utf-8")
        return found

    @pytest.fixture(scope="class")
    @classmethod
    def whole(cls, client: Client, documents: list[Path], tmp_path_factory: pytest.TempPathFactory) -> gd.Network:
        """Return a network that was trained on all documents in one batch, with an index."""
        return cls.train(documents, tmp_path_factory.mktemp("whole") / "network", client)

    @classmethod
    def specification(cls, **options: Any) -> gd.Specification:
        """Return the specification of the tests' networks."""
        given = {"trace": True, "regions": 1, **options}
        return gd.Specification(profile=cls.profile, model_options=dict(cls.model_options), **given)

    @classmethod
    def train(
        cls,
        inputs: list[Path],
        path: Path,
        client: Client,
        *,
        regions: int = 1,
        observer: Observer = ignore,
        **options: Any,
    ) -> gd.Network:
        """Train a network."""
        specification, training = cls.specification(regions=regions), gd.TrainingOptions(**options)
        return gd.train(inputs, path, client=client, specification=specification, options=training, observer=observer)

    def test_batches_regions_and_order_change_nothing(
        self, whole: gd.Network, client: Client, documents: list[Path], tmp_path: Path
    ) -> None:
        """Train in small batches, in regions that split, and, where the model says so, in the opposite order."""
        order = -1 if whole.specification.is_order_free else 1
        other = self.train(
            documents[::order],
            tmp_path / "network",
            client,
            regions=2,
            batch_sequences=6,
            region_bytes=1 << 15,
            hot_bytes=1 << 13,
        )
        assert other.digest() == whole.digest()
        prompt = _prompt(documents)
        assert other.generate(prompt, max_tokens=5).text == whole.generate(prompt, max_tokens=5).text

    def test_repeated_trainings_are_the_same(
        self, whole: gd.Network, client: Client, documents: list[Path], tmp_path: Path
    ) -> None:
        """Train on the same text again and again: what is counted depends on nothing else."""
        again = [self.train(documents, tmp_path / name, client) for name in "ab"]
        assert {each.digest() for each in again} == {whole.digest()}

    @pytest.mark.parametrize("part", [("Word", 1), ("word", 0), ("word", -1), ("word", 1.5), ("word", "1")])
    def test_impossible_contexts_are_refused(self, part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """Refuse parts of contexts that no text has before anything is trained."""
        with pytest.raises(SpecificationError, match="of the context"):
            gd.Context("impossible", (part,))
        self.specification()
        model = type(find_model(self.profile))
        if issubclass(model, gd.CountedModel):
            monkeypatch.setattr(
                model, gd.CountedModel.contexts.__name__, lambda *_: [gd.Context("1", (("word", 1),)), part]
            )
            with pytest.raises(SpecificationError, match=r"list of gd\.Context"):
                self.specification()

    def test_stops_and_killed_workers_change_nothing(
        self, whole: gd.Network, client: Client, documents: list[Path], tmp_path: Path
    ) -> None:
        """Stop after some sequences, and go on with two worker processes that are killed in turn; evaluate there."""
        path = tmp_path / "network"
        self.train(documents, path, client, max_sequences=_LINES + 3)
        with gd.connect(workers=2) as two:
            workers = list(two.run(os.getpid).values())

            def kill(event: object) -> None:
                if workers and type(event).__name__ == "RoundIntegrated":
                    os.kill(workers.pop(), signal.SIGKILL)

            network = self.train(documents, path, two, observer=kill, batch_sequences=2, rounds_in_flight=1)
            report = network.evaluate(documents[:1], client=two)
        assert not workers, "both were killed"
        assert network.digest() == whole.digest()
        assert report.top1 == whole.evaluate(documents[:1], client=client).top1
        assert self.train(documents, path, client).commit == network.commit, "nothing is left to count"

    def test_sums_and_differences(
        self, whole: gd.Network, client: Client, documents: list[Path], tmp_path: Path
    ) -> None:
        """Add networks of parts of the text, and forget a document."""
        if not whole.specification.is_order_free:
            pytest.skip("networks whose counts depend on the order of text cannot be added")
        first = self.train(documents[:-1], tmp_path / "first", client)
        last = self.train(documents[-1:], tmp_path / "last", client)
        both = gd.add([last, first], tmp_path / "both", client=client)
        assert both.digest() == whole.digest()
        gd.forget(both.path, documents[-1:], client=client)
        assert gd.open(both.path).digest() == first.digest()
        difference = gd.diff(first, whole, client=client)
        assert difference.connections["gone"] == difference.connections["weaker"] == 0
        assert difference.connections["stronger"] + difference.connections["new"] > 0
        assert all(change.source and change.target for change in difference.largest)

    def test_tokens_are_traced(self, whole: gd.Network, documents: list[Path]) -> None:
        """Find the sentences behind each token: their shares add up to the stored strength."""
        continuation = whole.generate(_prompt(documents), max_tokens=4)
        trace = continuation.trace(sentences=1000)
        reader = NetworkStore(whole.path).open(whole.commit)
        stored = merge_runs([unpack(reader.run(run.identity).connections) for run in reader.manifest().runs])
        traced = 0
        for token, found in zip(continuation.tokens, trace.tokens, strict=True):
            keys = [reason.connection for reason in token.reasons if reason.connection is not None]
            for key, connection in zip(keys, found.connections, strict=True):
                row = stored.row(key.source)
                assert row is not None
                (at,) = np.flatnonzero(row.target == pack_target(key.segment, key.target, key.branch))
                assert sum(sentence.units for sentence in connection.sentences) == row.strength[at]
                assert all(sentence.text for sentence in connection.sentences)
                traced += 1
        assert traced

    def test_exports_hold_every_count(self, whole: gd.Network, tmp_path: Path) -> None:
        """Export twice, the same bytes; a table has a row for each connection, with names."""
        first, second = (whole.export(tmp_path / f"{name}.npz") for name in "ab")
        assert first.connections.read_bytes() == second.connections.read_bytes()
        frame = whole.to_dask_dataframe().compute()
        assert len(frame) == whole.manifest.connections

    def test_predictions_repeat(self, whole: gd.Network, client: Client, documents: list[Path]) -> None:
        """Continue a prompt here, in a task and in a batch; evaluate the text."""
        prompt = _prompt(documents)
        here = whole.generate(prompt, max_tokens=5)
        assert here.tokens
        assert whole.generate(prompt, max_tokens=5, client=client).text == here.text
        together = whole.sessions([prompt] * 2, client=client, options=gd.GenerationOptions(max_tokens=5, reasons=0))
        assert [each.text for each in together.continuations()] == [here.text] * 2
        report = whole.evaluate(documents[:1], client=client)
        assert 0 < report.top1 <= 1
        if whole.specification.traits.probabilities:
            assert isinstance(report, gd.ScoreReport)
            assert report.every.perplexity > 1
            drawn = [whole.generate(prompt, max_tokens=5, temperature=1.0, seed=7).text for _ in range(2)]
            assert drawn[0] == drawn[1]

    @pytest.mark.parametrize("workers", [0, 1])
    def test_a_server_answers(self, whole: gd.Network, client: Client, documents: list[Path], workers: int) -> None:
        """Complete a prompt over HTTP in the server's process and on a worker, as `Network.generate` does."""
        testclient = pytest.importorskip("starlette.testclient")
        prompt, store = _prompt(documents), NetworkStore(whole.path)
        expected = whole.generate(prompt, max_tokens=5).text.split()
        generation = gd.GenerationOptions(reasons=0)
        clients, batch = SharedClient(lambda: client), BatchOptions(slots=2)
        opener = EngineOpener(clients=clients, generation=generation, batch=batch, workers=workers)
        reader = store.open(whole.commit)
        with closing(Models([ModelSource.of(reader, partial(opener.open, reader))])) as models:
            models.open_default()
            with testclient.TestClient(build_app(models, ServingOptions()), "http://127.0.0.1") as http:
                answer = http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 5, "temperature": 0})
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["text"].split() == expected

    def test_what_does_not_fit_is_refused(
        self,
        whole: gd.Network,
        documents: list[Path],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """Refuse unknown options, also stored ones; without the model, do what needs none."""
        with pytest.raises(SpecificationError, match="no such option"):
            gd.Specification(profile=self.profile, model_options={"no such option": 1})
        package, profile = whole.specification.package, self.profile
        if not package:
            return
        fields = {**whole.specification.as_dict(), "model_options": {"no such option": 1}}
        with pytest.raises(SpecificationError, match="no such option"):
            find_model(profile).require_trainable(gd.Specification.from_dict(fields))
        expected, path = whole.digest(), shutil.copytree(whole.path, tmp_path / "copy")
        exported = whole.export(tmp_path / "with.npz").connections.read_bytes()
        clear_models()
        monkeypatch.setattr("giaann_dask.registry.entry_points", lambda **_: ())
        monkeypatch.setitem(sys.modules, module_of(profile), None)
        for command in (["inspect", "--parts"], ["log"], ["tag"], ["compact"]):
            assert run([command[0], str(path), *command[1:]]) == 0, command
        opened = gd.open(path)
        if not whole.specification.own_exports:
            assert opened.digest() == expected
            assert opened.export(tmp_path / "without.npz").connections.read_bytes() == exported
        with pytest.raises(MissingDependencyError, match=package):
            opened.generate("the")
        capsys.readouterr()
        text = str(documents[0])
        for refused in (["generate", "the"], ["evaluate", text], ["trace", "the"], ["index", text]):
            assert run([refused[0], str(path), *refused[1:]]) == 2
            assert package in capsys.readouterr().err, refused
        clear_models()


def _prompt(documents: list[Path]) -> str:
    """Return the first words of a document."""
    return " ".join(documents[0].read_text(encoding="utf-8").split()[:6])
