"""Models of one's own: what is refused before training, what their code is given, and what is said when it fails."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, make_dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pytest
from distributed import Client
from support import own_models
from support.village import write_village

import giaann_dask as gd
from giaann_dask.cli import run
from giaann_dask.errors import MissingDependencyError, ModelError, OptionError, SpecificationError
from giaann_dask.models.results import Reason
from giaann_dask.models.words.counting import count_contexts
from giaann_dask.models.words.stream import Context, TokenStream
from giaann_dask.registry import clear_models, find_model, name_model
from giaann_dask.store.export import ColumnArray

PROFILE = "support.own_models:MODEL"


EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with gd.connect(workers=0) as client:
        yield client


@pytest.fixture(autouse=True)
def _examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_village(tmp_path_factory.mktemp("text") / "text.txt", 60, 1)


def train(text: Path, path: Path, client: Client, profile: str = PROFILE, **options: Any) -> gd.Network:
    specification = gd.Specification(profile=profile, model_options=options, trace=True)
    return gd.train(text, path, client=client, specification=specification)


PARTS = [
    *(("Word", 1), ("word", 0), ("word", -1), ("word", 1.0), ("word", 1.5), ("word", "1"), ("word", True)),
    *(("word", 4097), ("word",), ("word", 1, 2), (None, 1), "w1", 1, None),
]


@pytest.mark.parametrize("part", PARTS, ids=repr)
def test_impossible_contexts_are_refused_where_they_are_made(part: object) -> None:
    with pytest.raises(SpecificationError, match="context 'a'; expected pairs of 'word'"):
        gd.Context("a", (part,))  # type: ignore[arg-type]
    assert gd.Context("a", [["word", np.int64(2)]]).parts == (("word", 2),)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("contexts", "said"),
    [
        (None, "returns None as contexts"),
        (["word"], r"returns \['word'\] as contexts"),
        ([Context(str(at), (("word", 1),)) for at in range(32)], "at most 31 names"),
        ([Context("a", (("word", 1),)), Context("a", (("ending", 1),))], "of one name, 'a'"),
    ],
)
def test_contexts_that_cannot_be_counted_are_refused_before_training(
    contexts: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_models.Model, "contexts", lambda self, options: contexts)
    with pytest.raises(SpecificationError, match=said):
        gd.Specification(profile=PROFILE)


def test_contexts_of_one_name_share_a_segment_and_functions_are_views() -> None:
    stream = TokenStream.from_documents([[["b", "a", "c", "a"]], [["x"]]])
    bag = tuple(Context("bag", (("word", distance),)) for distance in (1, 2, 3))
    last = Context("last", ((lambda words: words[-1] if words[-1] != "c" else None, 2),))
    run = count_contexts(stream, {0: Context("all", ()), 1: bag, 2: last})
    # a occurs twice after b; b before c before a; the place before a sentence counts as a word of the bag, too.
    alone = [count_contexts(stream, {1: each}) for each in bag]
    assert run.strength[run.target >> 58 == 1].sum() == sum(each.strength.sum() for each in alone) == 5 + 3 + 2
    (key,) = stream.sources(1, bag[0], 1, 2).tolist()
    row = run.row(key)
    assert row is not None
    assert sorted(row.strength.tolist()) == [1, 2], "c once, a at two distances"
    assert (stream.sources(2, last) >= 0).tolist() == [False, True, True, True, False]
    for size in (1, 2, 3):
        assert count_contexts(stream, {1: bag, 2: last}, block_tokens=size).target.tolist() == (
            run.target[run.target >> 58 != 0].tolist()
        )


def test_trainings_traces_and_removals_of_shared_segments_and_functions(
    client: Client, text: Path, tmp_path: Path
) -> None:
    network = train(text, tmp_path / "net", client)
    continuation = network.generate("The old miller carried", max_tokens=6)
    assert {reason.segment for token in continuation.tokens for reason in token.reasons} == {1, 2, 3}
    for token, found in zip(continuation.tokens, continuation.trace(sentences=100).tokens, strict=True):
        for reason, connection in zip(token.reasons, found.connections, strict=True):
            assert sum(each.units for each in connection.sentences) == reason.strength
    other = write_village(tmp_path / "other.txt", 9, 2)
    both = gd.train(other, tmp_path / "both", client=client, specification=network.specification)
    gd.train(text, both.path, client=client, specification=network.specification)
    gd.forget(both.path, [other], client=client)
    assert gd.open(both.path).digest() == network.digest()
    batched = gd.train(
        text, tmp_path / "batched", client=client, specification=network.specification, batch_sequences=7
    )
    assert batched.digest() == network.digest()


def test_what_a_model_is_given_cannot_be_written_to(client: Client, text: Path, tmp_path: Path) -> None:
    network = train(text, tmp_path / "net", client, fault="writes")
    for _ in range(2):
        with pytest.raises(ModelError, match=r"own_models.Model fails in probabilities \(ValueError.*read-only.*line"):
            network.generate("The miller")


def test_a_class_of_another_package_gets_arrays_that_are_read_only() -> None:
    class Other(own_models.Model):
        def may_prune(self, run: Any) -> Any:
            run.strength[0] = 0

        def shares(self, postings: Any, connection: Any, specification: Any) -> Any:
            postings(1).strength[0] = 0

    run = count_contexts(TokenStream.from_documents([[["a", "b"]]]), {1: Context("1", (("word", 1),))})
    with pytest.raises(ModelError, match=r"Other fails in may_prune .*read-only"):
        Other().may_prune(run)
    with pytest.raises(ModelError, match=r"Other fails in shares .*read-only"):
        Other().shares(lambda key: run, None, None)
    assert run.strength.flags.writeable


@pytest.mark.parametrize("fault", ["contexts", "view", "probabilities"])
def test_errors_of_a_model_name_it(fault: str, client: Client, text: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"fails in .*own_models.py line \d+"):
        train(text, tmp_path / "net", client, fault=fault).generate("The miller")


def test_probabilities_that_are_all_0_choose_no_word(client: Client, text: Path, tmp_path: Path) -> None:
    network = train(text, tmp_path / "net", client, fault="zero")
    for temperature in (0.0, 1.0):
        with pytest.raises(OptionError, match="gives every known word the probability 0"):
            network.generate("The miller", temperature=temperature)


def test_reasons_are_those_of_the_model(client: Client, text: Path, tmp_path: Path) -> None:
    ignoring = train(text, tmp_path / "ignoring", client, fault="ignores").generate("The old", max_tokens=2)
    reasons = [reason for token in ignoring.tokens for reason in token.reasons]
    assert reasons
    assert {reason.contribution for reason in reasons} == {0.0}
    assert not any("probable" in line for token in ignoring.tokens for line in token.lines())
    assert any(line.endswith(" times") for token in ignoring.tokens for line in token.lines())
    network = train(text, tmp_path / "net", client)
    token = network.generate("The old", max_tokens=1).tokens[0]
    assert any("times as probable" in line for line in token.lines())
    assert all(isinstance(reason, Reason) and np.isfinite(reason.contribution) for reason in token.reasons)


def test_a_model_without_contexts_generates_and_is_traced(client: Client, text: Path, tmp_path: Path) -> None:
    network = train(text, tmp_path / "net", client, "support.own_models:NO_CONTEXTS")
    found = network.generate("The", max_tokens=2)
    assert found.text
    assert [token.connections for token in found.trace().tokens] == [(), ()]


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("support.own_models:OTHER", SpecificationError, "has no OTHER; expected one of MODEL, NO_CONTEXTS, NO_MODEL"),
        ("support.own_models:NO_MODEL", SpecificationError, "is object"),
        ("support.own_models:", SpecificationError, "expected a name, or module:attribute"),
        ("support.nothing:MODEL", MissingDependencyError, "install the package support"),
    ],
)
def test_names_of_models_that_are_none(name: str, kind: type[Exception], said: str) -> None:
    name_model(name)
    with pytest.raises(kind, match=said):
        find_model(name)


def test_the_name_of_a_view_is_that_of_its_function() -> None:
    one = Context("a", ((partial(own_models.last_vowel), 1),))
    stream = TokenStream.from_documents([[["the", "sky"]]])
    assert stream.sources(1, one).tolist() == stream.sources(1, Context("a", ((own_models.last_vowel, 1),))).tolist()


# Examples


@pytest.mark.parametrize("name", ["TOPIC", "BAG", "CLASS_BIGRAM", "SPARSE_BIGRAM", "DECAYING"])
def test_small_models_are_trained_added_forgotten_traced_and_evaluated(
    name: str, client: Client, text: Path, tmp_path: Path
) -> None:
    profile, other = f"small_models:{name}", write_village(tmp_path / "other.txt", 9, 2)
    whole = train(text, tmp_path / "whole", client, profile)
    batched = gd.train(
        text, tmp_path / "batched", client=client, specification=whole.specification, batch_sequences=7, regions=1
    )
    assert batched.digest() == whole.digest()
    assert {"profile": profile, "package": "small_models"}.items() <= whole.specification.as_dict().items()
    part = train(other, tmp_path / "part", client, profile)
    both = gd.add([whole, part], tmp_path / "both", client=client)
    gd.forget(both.path, [other], client=client)
    assert gd.open(both.path).digest() == whole.digest()
    prompt = " ".join(text.read_text(encoding="utf-8").split()[:6])
    continuation = whole.generate(prompt, max_tokens=4, client=client)
    assert continuation.tokens
    for token, found in zip(continuation.tokens, continuation.trace(sentences=1000).tokens, strict=True):
        for reason, connection in zip(token.reasons, found.connections, strict=True):
            units = sum(each.units for each in connection.sentences)
            assert units / whole.specification.strength_unit == pytest.approx(reason.strength)
    report = whole.evaluate(other, client=client)
    assert 0 < report.top1 <= 1
    assert whole.export(tmp_path / "export.npz").connections.exists()


def test_columns_that_change_one_rule_have_no_other_settings(client: Client, text: Path, tmp_path: Path) -> None:
    specification = gd.Specification(profile="small_models:DECAYING", model_options={"half_life": 1.0})
    assert (specification.branches, specification.base, specification.segments) == (1, "v1", 8)
    assert specification.increments()[2] / specification.increments()[1] == pytest.approx(0.5, abs=0.01)
    assert gd.Specification.from_dict(specification.as_dict()) == specification
    plain = gd.Specification(branches=1)
    assert plain.increments().tolist() != specification.increments().tolist()
    with pytest.raises(SpecificationError, match=r"lif is True; expected False.*profile v2"):
        gd.Specification(profile="small_models:DECAYING", lif=True)
    corpus = gd.encode(text, tmp_path / "corpus", client=client, specification=plain)
    network = gd.train(corpus.path, tmp_path / "net", client=client, specification=specification)
    assert network.digest() == gd.train(text, tmp_path / "same", client=client, specification=specification).digest()


class Faulty(gd.ColumnsModel):
    defaults = {"proximity_scale": 5.0}  # noqa: RUF012


class Weightless(gd.ColumnsModel):
    def weights(self, distances: Any, specification: Any) -> Any:
        return np.where(distances > 5, 0, 1)


class Exporting(own_models.Model):
    def segment_names(self) -> dict[str, str]:
        return {"1": "before"}

    def coordinates(self, specification: Any) -> Any:
        return super().coordinates(specification) | {"double": ColumnArray(np.int64, lambda run: run.strength * 2)}

    def export_formats(self) -> Any:
        return {".words": lambda reader, path, observer, compression: path.write_text("words")}


FAULTY, WEIGHTLESS, EXPORTING = Faulty(), Weightless(), Exporting()


@pytest.mark.parametrize(
    ("name", "said"), [("FAULTY", "defaults is .*proximity_scale"), ("WEIGHTLESS", "weights is 0")]
)
def test_columns_that_cannot_be_trained_are_refused(name: str, said: str) -> None:
    with pytest.raises(SpecificationError, match=said):
        gd.Specification(profile=f"{__name__}:{name}")


def test_exports_and_digests_are_those_of_the_model(
    client: Client, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, network = (
        train(text, tmp_path / name, client, profile)
        for name, profile in (("plain", PROFILE), ("own", f"{__name__}:EXPORTING"))
    )
    assert "own_exports" not in plain.specification.as_dict()
    exported = network.export(tmp_path / "a.npz")
    assert exported.dictionaries is not None
    assert json.loads(exported.dictionaries.read_text())["kinds"] == {"1": "before"}
    with np.load(exported.connections) as arrays:
        assert (arrays["double"] == 2 * arrays["count"]).all()
    network.export(tmp_path / "a.words")
    assert (tmp_path / "a.words").read_text() == "words"
    assert network.digest() != plain.digest()
    assert (network.to_dask_dataframe().compute()["double"] > 1).all()
    monkeypatch.setitem(sys.modules, __name__, None)
    clear_models()
    with pytest.raises(MissingDependencyError, match=f"install the package {__name__}"):
        gd.open(network.path).digest()
    clear_models()


@dataclass(frozen=True, kw_only=True)
class Many:
    pair: tuple[int, int] = (1, 2)
    names: list[str] = field(default_factory=lambda: ["a"])
    table: dict[str, float] = field(default_factory=lambda: {"a": 0.5})
    array: Any = field(default_factory=lambda: np.array([0.5, 0.25]))
    scalar: Any = field(default_factory=lambda: np.float64(0.5))
    kinds: frozenset[str] = frozenset({"x", "y"})
    nothing: Any = None


class WithMany(own_models.Model):
    options = Many

    def contexts(self, options: Many) -> list[gd.Context]:
        assert (options.pair, type(options.array)) == ((1, 2), np.ndarray)
        return [gd.Context("1", (("word", 1),))]

    def probabilities(self, seen: gd.SeenWords, options: Many) -> Any:
        return options.array[0] * options.table["a"] * seen.counts / seen.total


class Plain:
    def __init__(self, value: int = 1) -> None:
        self.value = value


class WithPlain(own_models.Model):
    options = Plain


WITH_MANY, WITH_PLAIN = WithMany(), WithPlain()


def test_values_of_options_are_stored_as_they_are_or_refused(client: Client, text: Path, tmp_path: Path) -> None:
    network = train(text, tmp_path / "net", client, f"{__name__}:WITH_MANY", names=["b", "c"])
    stored = gd.open(network.path).specification
    assert stored == network.specification
    options = WITH_MANY.options_of(stored)
    default = Many(names=["b", "c"])
    assert options.array.tolist() == default.array.tolist()
    for name in ("pair", "names", "table", "scalar", "kinds", "nothing"):
        assert getattr(options, name) == getattr(default, name), name
        assert type(getattr(options, name)) is type(getattr(default, name)), name
    assert network.generate("The old").text
    again = gd.train(text, network.path, client=client, specification=network.specification)
    assert again.commit == network.commit
    for wrong in (object(), float("nan"), {1: 2}, [Plain()]):
        with pytest.raises(SpecificationError, match=r"option nothing of the model .* cannot be stored"):
            gd.Specification(profile=f"{__name__}:WITH_MANY", model_options={"nothing": wrong})
    with pytest.raises(SpecificationError, match=r"of the class .*Plain; expected a dataclass"):
        gd.Specification(profile=f"{__name__}:WITH_PLAIN")


def test_options_that_only_predictions_read_change_in_training_and_sums(
    client: Client, text: Path, tmp_path: Path
) -> None:
    network, other = train(text, tmp_path / "net", client), write_village(tmp_path / "other.txt", 9, 2)
    before = network.generate("The miller").tokens[0].candidates[0].value
    further = gd.Specification(profile=PROFILE, model_options={"smoothing": 0.5}, trace=True)
    after = gd.train(other, network.path, client=client, specification=further)
    assert dict(after.specification.model_options)["smoothing"] == 0.5
    assert gd.open(network.path).generate("The miller").tokens[0].candidates[0].value != before
    part = train(other, tmp_path / "part", client, smoothing=0.2)
    whole = gd.add([train(text, tmp_path / "first", client), part], tmp_path / "sum", client=client)
    assert whole.manifest.connections == after.manifest.connections
    longer = gd.Specification(profile=PROFILE, model_options={"reach": 4}, trace=True)
    with pytest.raises(SpecificationError, match="reach"):
        gd.train(text, network.path, client=client, specification=longer)
    other_rules = train(text, tmp_path / "longer", client, reach=4)
    with pytest.raises(SpecificationError, match="reach"):
        gd.add([part, other_rules], tmp_path / "no", client=client)


def test_options_that_only_predictions_read_change_with_each_prediction(
    client: Client, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network, changed = train(text, tmp_path / "net", client), {"smoothing": 0.5}
    other = train(text, tmp_path / "other", client, **changed)
    prompt = "The old"

    def value(found: gd.Network, **options: Any) -> float:
        return found.generate(prompt, max_tokens=1, **options).tokens[0].candidates[0].value

    assert value(network) != value(other) == value(network, model_options=changed)
    assert value(network, model_options=changed, client=client) == value(other)
    for method in ("evaluate", "score"):
        one, two = getattr(other, method)(text, client=client), network
        assert one.every == getattr(two, method)(text, client=client, model_options=changed).every
        assert one.every != getattr(two, method)(text, client=client).every
    command = ["--set", "model_options=smoothing=0.5", "--json", "--profile", PROFILE]
    assert run(["generate", str(network.path), prompt, "--max-tokens", "1", *command]) == 0
    found = json.loads(capsys.readouterr().out)["tokens"][0]["candidates"][0]["value"]
    assert found == value(other)
    assert run(["evaluate", str(network.path), str(text), "--workers", "0", *command]) == 0
    assert json.loads(capsys.readouterr().out)["perplexity"] == other.score(text, client=client).as_dict()["perplexity"]
    with gd.serve(network, client=client, port=0, model_options=changed) as server:
        body = json.dumps({"prompt": prompt, "max_tokens": 1, "temperature": 0, "logprobs": 1}).encode()
        request = Request(f"{server.url}/v1/completions", body, {"Content-Type": "application/json"})
        with urlopen(request, timeout=60) as answer:
            served = json.load(answer)["choices"][0]["logprobs"]["token_logprobs"][0]
    assert served == pytest.approx(np.log(value(other)))
    for wrong, kind, said in (
        ({"reach": 2}, OptionError, "change what is counted"),
        ({"nothing": 2}, SpecificationError, "nothing"),
        (3, OptionError, "names with values"),
    ):
        for method in ("generate", "evaluate", "score"):
            with pytest.raises(kind, match=said):
                getattr(network, method)(str(text), client=client, model_options=wrong)
    with gd.connect(workers=0), pytest.raises(OptionError, match="leave model_options out"):
        gd.train(text, tmp_path / "contexts", profile="contexts").generate(prompt, model_options=changed)


def test_a_package_that_gains_an_option_reads_its_old_networks(
    client: Client, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = train(text, tmp_path / "net", client)
    more = make_dataclass("More", [("more", int, 3)], bases=(own_models.Options,), frozen=True, kw_only=True)
    monkeypatch.setattr(own_models.Model, "options", more)
    opened = gd.open(network.path)
    assert opened.generate("The miller").text == network.generate("The miller").text
    specification = gd.Specification(profile=PROFILE, trace=True)
    assert dict(specification.model_options)["more"] == 3
    assert gd.train(text, opened.path, client=client, specification=specification).commit == network.commit
