"""The model of lm-evaluation-harness: its own evaluator, tasks of a local file, and the figures of `Network.score`."""

from __future__ import annotations

import importlib
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.village import write_village

import giaann_dask as gd
from giaann_dask.errors import MissingDependencyError, OptionError
from giaann_dask.lazy import LazyModule
from giaann_dask.models.contexts import scores
from giaann_dask.models.contexts.scores import BEST, LogLinearModel
from giaann_dask.models.contexts.span_kernel import score_tokens
from giaann_dask.models.contexts.table_files import read_tables
from giaann_dask.models.words.score_report import ScoreReport

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

    from giaann_dask.api.lm_eval import GiaannLM

# Of the processes that collect this file, one runs it: the harness takes two seconds to import.
harness, tasks, instance, ours = map(
    LazyModule, ("lm_eval", "lm_eval.tasks", "lm_eval.api.instance", "giaann_dask.api.lm_eval")
)
TEXT = "The old miller carried the flour—quite new—to him.  It was a zyx\n\nThe baker watched the “mill”."
DOCUMENTS = [
    TEXT,
    "The miller followed the old horse over the early river.",
    "Nobody knew why the farmer watched the mill.",
]
QUESTIONS = [
    {"given": "The old miller carried the", "choices": ["farmer", "qwx zz"], "right": 0},
    {"given": "The farmer watched the old", "choices": ["x y z", "miller"], "right": 1},
    {"given": "The baker followed the", "choices": ["mill", "vvv uuu"], "right": 1},
]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> gd.Network:
    folder = tmp_path_factory.mktemp("evaluated")
    text = write_village(folder / "text.txt", 300)
    with gd.connect(workers=0) as client:
        gd.train(text, folder / "net", client=client, specification=gd.Specification(profile="contexts"))
    return gd.Network(folder / "net")


@pytest.fixture(scope="module")
def model(network: gd.Network) -> GiaannLM:
    return ours.GiaannLM(network.path)


def score(network: gd.Network, folder: Path, text: str) -> ScoreReport:
    (folder / "scored.txt").write_text(text, encoding="utf-8")
    with gd.connect(workers=0) as client:
        return network.score(folder / "scored.txt", client=client)


def requests(kind: Any, *arguments: tuple[Any, ...]) -> list[Instance]:
    return [instance.Instance(kind, {}, each, at) for at, each in enumerate(arguments)]


def write_tasks(folder: Path) -> None:
    """Write a task of choices and one of whole documents, each with its data in a file of JSON lines."""
    common = {"dataset_path": "json", "test_split": "test"}
    choices = {
        "output_type": "multiple_choice",
        "doc_to_text": "given",
        "doc_to_choice": "choices",
        "doc_to_target": "right",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }
    metrics = [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}]
    rolling = {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "text",
        "metric_list": metrics,
    }
    rows: Any = {
        "choices": (choices, QUESTIONS),
        "rolling": ({**rolling, "metric_list": metrics}, [{"text": text} for text in DOCUMENTS]),
    }
    for name, (task, documents) in rows.items():
        data = folder / f"{name}.jsonl"
        data.write_text("".join(f"{json.dumps(document)}\n" for document in documents), encoding="utf-8")
        read = {"data_files": {"test": str(data)}, "cache_dir": str(folder / "cache")}
        # JSON is YAML, too.
        (folder / f"{name}.yaml").write_text(json.dumps({**common, "task": name, "dataset_kwargs": read, **task}))


def test_the_harness_evaluates_tasks_of_local_files(network: gd.Network, model: GiaannLM, tmp_path: Path) -> None:
    write_tasks(tmp_path)
    manager = tasks.TaskManager(include_path=str(tmp_path), include_defaults=False)
    options: Any = {"task_manager": manager, "bootstrap_iters": 0}
    found = harness.simple_evaluate(
        model="giaann", model_args={"network": str(network.path)}, tasks=["choices"], **options
    )
    assert found is not None
    # The third question names a wrong answer as the right one.
    assert found["results"]["choices"]["acc,none"] == pytest.approx(2 / 3)
    found = harness.simple_evaluate(model=model, tasks=["rolling"], **options)
    assert found is not None
    nats = sum(score(network, tmp_path, text).every.nats for text in DOCUMENTS)
    words = sum(len(text.split()) for text in DOCUMENTS)
    figures = found["results"]["rolling"]
    assert figures["word_perplexity,none"] == pytest.approx(math.exp(nats / words))
    nbytes = sum(len(text.encode()) for text in DOCUMENTS)
    assert figures["bits_per_byte,none"] == pytest.approx(nats / math.log(2) / nbytes)


def test_a_text_has_the_perplexity_that_scoring_gives(network: gd.Network, model: GiaannLM, tmp_path: Path) -> None:
    known = score(network, tmp_path, TEXT).every
    (total,) = model.loglikelihood_rolling(requests("loglikelihood_rolling", (TEXT,)))
    assert math.exp(-total / known.tokens) == pytest.approx(known.perplexity, rel=1e-12)


@pytest.mark.parametrize("words", [5, 2, 0])
def test_a_continuation_has_the_words_after_its_context(
    network: gd.Network, model: GiaannLM, tmp_path: Path, words: int
) -> None:
    text = "The old miller carried the flour and the zyx"
    context = " ".join(text.split()[:words])
    scores = score(network, tmp_path, text).scores
    for given in (context, f"{context} ") if words else ("",):
        asked = requests("loglikelihood", (given, text[len(given) :]))
        ((total, greedy),) = model.loglikelihood(asked)
        assert total == pytest.approx(float(scores.log_probability[words:].sum()), rel=1e-12)
        assert greedy == bool(scores.matches[words:].all())


def test_what_is_generated_is_the_most_probable_continuation(network: gd.Network, model: GiaannLM) -> None:
    context = "The old miller carried the"
    known = network.generate(context, options=gd.GenerationOptions(max_tokens=6, reasons=0)).text
    stop = known.split()[3]
    asked = [
        (context, {"until": [], "max_gen_toks": 6}),
        (context, {"until": ["never", f" {stop}"], "max_gen_toks": 6}),
        (context, {"until": stop, "do_sample": True, "temperature": 1.0, "max_gen_toks": 6}),
    ]
    whole, stopped, drawn = model.generate_until(requests("generate_until", *asked))
    assert whole == f" {known}"
    assert stopped == whole[: whole.index(f" {stop}")]
    assert stop not in drawn
    (text,) = model.generate_until(requests("generate_until", (context, {"until": [stop], "max_gen_toks": 6})))
    ((_, greedy),) = model.loglikelihood(requests("loglikelihood", (context, text)))
    assert greedy


@pytest.mark.parametrize("context", ["", " ", "\n\t\u3000", "The old miller"])
def test_nothing_to_continue_or_to_generate_is_an_empty_text(model: GiaannLM, context: str) -> None:
    settings: list[dict[str, Any]] = [{"max_gen_toks": 0}, {"max_gen_toks": -1}]
    settings += [] if context.strip() else [{}, {"max_gen_toks": 5, "do_sample": True, "temperature": 1.0}]
    asked = requests("generate_until", *((context, {"until": ["x"], **each}) for each in settings))
    assert model.generate_until(asked) == [""] * len(settings)
    given = {"until": None, "max_gen_toks": None, "do_sample": True, "temperature": None}
    (text,) = model.generate_until(requests("generate_until", (f"{context} The", given)))
    assert text


def test_continuations_of_a_long_context_cost_their_own_words(
    network: gd.Network, model: GiaannLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = LogLinearModel(read_tables(str(network.path), network.commit), BEST)
    context = "The old miller carried the flour. The baker watched it\n\n" * 30 + "The old miller carried the"
    endings = (" flour", " xyz qrs", "s old", " mill.")
    wanted = [
        math.fsum(word.log_probability for word in whole.score_text(context + ending) if word.end > len(context))
        for ending in endings
    ]
    spans = []

    def counted(*arguments: Any) -> Any:
        spans.append(arguments[-1] - arguments[-2])
        return score_tokens(*arguments)

    monkeypatch.setattr(scores, "score_tokens", counted)
    found = model.loglikelihood(requests("loglikelihood", *((context, ending) for ending in endings)))
    assert [total for total, _ in found] == wanted
    assert spans == [1, 2, 2, 2]


def test_networks_without_probabilities_are_refused(tmp_path: Path) -> None:
    with gd.connect(workers=0) as client:
        gd.train(write_village(tmp_path / "text.txt", 20), tmp_path / "net", client=client)
    with pytest.raises(OptionError, match="profile contexts"):
        ours.GiaannLM(tmp_path / "net")


def test_the_missing_harness_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "giaann_dask.api.lm_eval", raising=False)
    monkeypatch.setitem(sys.modules, "lm_eval.api.model", None)
    with pytest.raises(MissingDependencyError, match=r"giaann-dask\[lm-eval\]"):
        importlib.import_module("giaann_dask.api.lm_eval")
