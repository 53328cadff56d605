"""Errors speak the caller's language: parameters in Python, options on the command line."""

from __future__ import annotations

import ast
import logging
import pickle
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from inspect import Parameter, isfunction, signature, unwrap
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from distributed.client import AllExit

import giaann_dask as gd
from giaann_dask import errors, keywords
from giaann_dask.api.columns import Column
from giaann_dask.cli import giaann_dask as command_line
from giaann_dask.cli import run
from giaann_dask.cli.click_ext import Command, commands_below
from giaann_dask.cluster import ClusterOptions
from giaann_dask.data import sample_test_text
from giaann_dask.diagnostics.pictures import Pictures
from giaann_dask.diagnostics.pictures.draw_options import DrawOptions
from giaann_dask.encoding.stream import StreamOptions
from giaann_dask.errors import GiaannError, OptionError
from giaann_dask.models.generation_options import BeamOptions, PredictionRules, StateOptions
from giaann_dask.rows.protocol import RowOptions
from giaann_dask.serving.serving_options import Limits, QueueOptions, ServingOptions
from giaann_dask.spec import Specification
from giaann_dask.text.read_options import ReadOptions

ROOT = Path(__file__).resolve().parents[2]
SNAKE = re.compile(r"\b[a-z][a-z0-9]*_[a-z0-9_]+\b")
OPTION = re.compile(r"(?<!\w)--[a-z]")

# Command, its option with a value that is refused, and the same in Python.
CASES: list[tuple[str, str, str, Callable[..., Any], str, Any]] = [
    *(
        ("train", f"--{name.replace('_', '-')}", "0", gd.TrainingOptions, name, 0)
        for name in ("batch_sequences", "accumulate", "commit_seconds", "commit_sequences", "keep_commits")
    ),
    ("train", "--refresh-sequences", "0", gd.TrainingOptions, "refresh_sequences", 0),
    ("train", "--region-bytes", "0", gd.TrainingOptions, "region_bytes", 0),
    ("train", "--hot-bytes", "-1", gd.TrainingOptions, "hot_bytes", -1),
    ("train", "--text-field", "", ReadOptions, "text_field", ""),
    ("train", "--split", "", ReadOptions, "split", ""),
    *(
        ("train", "--set", f"{name}=0", Specification, name, 0)
        for name in ("seed_tokens", "branches", "regions", "proximity_scale", "strength_limit")
    ),
    ("train", "--max-sequences", "0", StreamOptions, "max_sequences", 0),
    ("train", "--threads", "0", ClusterOptions, "threads", 0),
    ("train", "--memory-limit", "1", ClusterOptions, "memory_limit", "1"),
    ("train", "--memory-limit", "much", ClusterOptions, "memory_limit", "much"),
    ("train", "--dashboard", "nonsense", ClusterOptions, "dashboard", "nonsense"),
    ("evaluate", "--top-k", "0", gd.EvaluationOptions, "top_k", (0,)),
    ("evaluate", "--first-sequence", "-1", StreamOptions, "first_sequence", -1),
    ("evaluate", "--rows-cache-bytes", "-1", RowOptions, "cache_bytes", -1),
    ("generate", "--max-tokens", "0", gd.GenerationOptions, "max_tokens", 0),
    ("generate", "--beam-width", "0", BeamOptions, "width", 0),
    ("generate", "--beam-depth", "0", BeamOptions, "depth", 0),
    ("generate", "--temperature", "-1", gd.SamplingOptions, "temperature", -1),
    ("generate", "--seed", "-1", gd.SamplingOptions, "seed", -1),
    ("draw", "--max-columns", "0", DrawOptions, "max_columns", 0),
    ("draw", "--max-features", "-1", DrawOptions, "max_features", -1),
    ("draw", "--max-connections", "-1", DrawOptions, "max_connections", -1),
    ("draw", "--width-inches", "1", DrawOptions, "width_inches", 1),
    ("serve", "--port", "99999", ServingOptions, "port", 99999),
    ("serve", "--timeout-s", "0", ServingOptions, "timeout_s", 0),
    ("serve", "--drain-s", "0", ServingOptions, "drain_s", 0),
    ("serve", "--max-slots", "0", QueueOptions, "slots", 0),
    ("serve", "--max-wait-s", "-1", QueueOptions, "wait_s", -1),
    ("serve", "--max-tokens", "0", Limits, "tokens", 0),
    ("serve", "--max-prompt-characters", "0", Limits, "prompt_characters", 0),
    ("serve", "--max-body-bytes", "0", Limits, "body_bytes", 0),
    ("serve", "--state-bytes", "1", StateOptions, "state_bytes", 1),
    ("cluster", "--hang-timeout-s", "0.5", ClusterOptions, "hang_timeout_s", 0.5),
]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("messages") / "net"
    with gd.connect(workers=0) as client:
        gd.train(sample_test_text(), folder, client=client)
    return folder


@pytest.mark.parametrize(("command", "option", "value"), [case[:3] for case in CASES])
def test_a_command_names_its_option(
    command: str, option: str, value: str, network: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, where = str(sample_test_text()), ("--workers", "0")
    begun = {
        "train": ("train", text, "--network", str(tmp_path / "new"), *where),
        "evaluate": ("evaluate", str(network), text, *where),
        "generate": ("generate", str(network), "The miller", *where),
        "draw": ("draw", str(network), "--out", str(tmp_path / "x.svg")),
        "serve": ("serve", str(network), *where),
        "cluster": ("cluster",),
    }
    capsys.readouterr()
    assert run([*begun[command], option, value]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    said = line.replace(str(tmp_path), "").replace(str(network), "")
    assert re.match(rf"giaann-dask: {re.escape(option)} ", said), said
    assert not SNAKE.search(re.sub(r"--set \w+", "--set", said)), said


@pytest.mark.parametrize(("make", "name", "value"), [case[3:] for case in CASES])
def test_python_names_its_parameter(make: Callable[..., Any], name: str, value: Any) -> None:
    with pytest.raises(GiaannError) as caught:
        make(**{name: value})
    assert re.match(rf"{name} (is|has) ", str(caught.value))
    assert not OPTION.search(str(caught.value))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: gd.GenerationOptions(max_tokens="5"), "max_tokens is '5'; expected a whole number"),
        (lambda: gd.GenerationOptions(max_tokens=10**20), "max_tokens is 1" + 20 * "0" + "; expected at most 1000000"),
        (lambda: gd.Specification(profile="v2", seed_tokens=2.5), "seed_tokens is 2.5; expected a whole number"),
        (lambda: gd.Specification(profile="v2", lif="no"), "lif is 'no'; expected True or False"),
        (lambda: gd.Specification(profile=2), "profile is 2; expected text"),
        (lambda: gd.train("x.txt", "net", region_bytes="1MB"), "region_bytes is '1MB'; expected a whole number"),
        (lambda: gd.train("x.txt", "net", specification="v2"), "specification is 'v2'; expected gd.Specification("),
        (lambda: gd.train("x.txt", None), "network is None; expected a path"),
        (lambda: gd.open(None), "path is None; expected a path"),
        (lambda: gd.open(b"net"), "path is b'net'; expected a path"),
        (lambda: gd.open(""), "the path is ''; expected a folder"),
    ],
)
def test_python_says_which_type_is_expected(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(OptionError) as caught:
        call()
    assert str(caught.value).startswith(said)
    # Numbers of NumPy are of the same types.
    assert gd.GenerationOptions(max_tokens=np.int64(5), reasons=np.uint8(0)).max_tokens == 5
    assert gd.SamplingOptions(temperature=np.float32(1)).temperature == 1


def test_options_of_another_class_are_refused(network: Path) -> None:
    opened = gd.open(network)
    with pytest.raises(OptionError, match=r"^options is EvaluationOptions\(.*; expected gd\.GenerationOptions\("):
        opened.generate("The miller", options=gd.EvaluationOptions())
    with pytest.raises(OptionError, match=r"^top_k is 5; expected a list"):
        opened.evaluate(["The old miller"], top_k=5)


def test_python_names_the_keyword_that_was_given(network: Path) -> None:
    opened = gd.open(network)
    for call in (
        lambda: opened.generate("The miller", max_tokens=0),
        lambda: opened.session("The miller", max_tokens=0),
        lambda: gd.diff(opened, opened, prompts=["The miller"], max_tokens=0),
    ):
        with pytest.raises(OptionError, match=r"^max_tokens is 0; expected 1 or more; set max_tokens"):
            call()
    with pytest.raises(OptionError, match=r"^max_sequences is 0; expected 1 or more; "):
        opened.evaluate(["The miller."], max_sequences=0)


def callables() -> Iterator[Any]:
    """Yield the public functions, the options, and the constructors and methods of objects."""
    reports = {"ColumnsModel", "CountedModel", "Files", "GiaannError", "Island", "NetworkDifference"}
    reports |= {"SeenWords", "SparseProbabilities", "TrainingPlan"}
    for name in gd.__all__:
        each = getattr(gd, name)
        if name not in reports and not name.endswith("Report"):
            yield each
    for kind in (gd.Network, gd.Training, Column, Pictures):
        members = [member for name, member in vars(kind).items() if isfunction(member) and not name.startswith("_")]
        yield from [each for each in members if len(signature(each).parameters) > 1]


@pytest.mark.parametrize("function", [pytest.param(each, id=each.__qualname__) for each in callables()])
def test_a_misspelt_keyword_names_the_parameter(function: Any) -> None:
    parameters = signature(function).parameters.values()
    named = [each.name for each in parameters if each.name != "self" and each.kind is not Parameter.VAR_KEYWORD]
    wrong = named[-1][:-1] + "zz"
    with pytest.raises(gd.GiaannError, match=rf"^[\w.]+ has no parameter '{wrong}'; expected {named[-1]}=\.\.\."):
        function(**{wrong: 1})
    with pytest.raises(TypeError, match=rf"expected one of {', '.join(named)}$"):
        function(**{"q" * 30: 1})


@pytest.mark.parametrize(
    ("function", "name", "written"),
    [
        (gd.train, "profil", "profile=..."),
        (gd.train, "text_feild", "text_field=..."),
        (gd.train, "windows", "window=..."),
        (gd.train, "workers", "client=gd.connect(options=gd.ClusterOptions(workers=...))"),
        (gd.encode, "seed_token", "seed_tokens=..."),
        (gd.TextOptions, "text_field", "reading=gd.ReadOptions(text_field=...)"),
        (gd.Network.evaluate, "timings", "timing=..."),
        (gd.EvaluationOptions, "timing", "inference=gd.InferenceOptions(timing=...)"),
        (gd.Network.draw, "colours", "colour=..."),
    ],
)
def test_a_keyword_of_nested_options_names_them(function: Any, name: str, written: str) -> None:
    with pytest.raises(GiaannError, match=re.escape(f" has no parameter {name!r}; expected {written}")):
        function(**{name: 1})


def options_of(call: Callable[[], object], monkeypatch: pytest.MonkeyPatch, target: str) -> Any:
    """Return the options that reach a function when something is called."""
    seen: list[Any] = []

    def record(*arguments: Any, **named: Any) -> None:
        seen.extend([*arguments, *named.values()])
        raise OptionError("recorded", "nothing")

    monkeypatch.setattr(target, record)
    with pytest.raises(OptionError, match=r"^recorded"):
        call()
    return seen


def test_fields_of_options_are_keywords(network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(**named: Any) -> Any:
        target = "giaann_dask.api.training._Request"
        return options_of(lambda: gd.train(["A miller."], tmp_path / "n", **named), monkeypatch, target)

    _, _, specification, text, options, _ = train(
        profile="v2", lif=False, text_field="body", tagger="gold", text=gd.TextOptions(ever_pos="corpus"), window=9
    )
    assert specification == gd.Specification(profile="v2", lif=False)
    assert text == gd.TextOptions(ever_pos="corpus", tagger="gold", reading=gd.ReadOptions(text_field="body"))
    assert options == gd.TrainingOptions(selection=gd.SelectionOptions(window=9))
    given = gd.TrainingOptions(max_sequences=5, accumulate=2)
    assert train(options=given, max_sequences=5, keep_commits=1)[4] == replace(given, keep_commits=1)
    assert train(selection=gd.SelectionOptions(seed=4), window=9)[4].selection == gd.SelectionOptions(seed=4, window=9)
    opened = gd.open(network)

    def generate(**named: Any) -> Any:
        target = "giaann_dask.predict.generation.generate"
        return options_of(lambda: opened.generate("The miller", **named), monkeypatch, target)[-1]

    assert generate(feed="prediction", width=2).inference == PredictionRules(feed="prediction")
    wanted = gd.GenerationOptions(inference=gd.InferenceOptions(timing="biased", feed="prediction"), max_tokens=3)
    assert generate(feed="prediction", timing="biased", max_tokens=3) == wanted
    held = gd.GenerationOptions(inference=gd.V2Settings(settings="train"))
    assert generate(options=held, feed="prediction").inference == gd.V2Settings(settings="train", feed="prediction")


@pytest.mark.parametrize(
    ("named", "said"),
    [
        (
            {"text_field": "body", "text": gd.TextOptions(reading=gd.ReadOptions(text_field="content"))},
            "both text_field='body' and text=gd.TextOptions(reading=gd.ReadOptions(text_field='content'));",
        ),
        ({"lif": True, "specification": gd.Specification(profile="v2", lif=False)}, "both lif=True and specification="),
        ({"max_sequences": 0}, "max_sequences is 0; expected 1 or more"),
        ({"tagger": "gold", "text": "gold"}, "text is 'gold'; expected gd.TextOptions"),
    ],
)
def test_options_and_a_keyword_of_another_value_are_refused(named: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=re.escape(said)):
        gd.train(["A miller."], "none", **named)


def test_keywords_of_rules_of_two_models_are_refused(network: Path) -> None:
    opened, v2 = gd.open(network), gd.GenerationOptions(inference=gd.V2Settings())
    with pytest.raises(OptionError, match="settings with timing; expected fields of one class"):
        opened.generate("The miller", timing="none", settings="test")
    with pytest.raises(OptionError, match=r"inference is V2Settings\(.*; expected gd.InferenceOptions"):
        opened.generate("The miller", timing="none", options=v2)


def test_a_keyword_belongs_to_one_parameter() -> None:
    takes_fields = [each for each in map(unwrap, callables()) if "keywords" in signature(each).parameters]
    assert len(takes_fields) > 15
    for function in takes_fields:
        for ways in keywords.option_fields(function).values():
            assert len({tuple(step.name for step in way) for way in ways if way[0].kind is not object}) <= 1


def test_ipython_shows_the_calling_lines_and_the_message(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shells = pytest.importorskip("IPython.core.interactiveshell")
    settings = pytest.importorskip("traitlets.config").Config()
    settings.HistoryManager.enabled = False
    shell = shells.InteractiveShell(config=settings)

    def shown(cell: str) -> str:
        shell.run_cell(cell)
        return capsys.readouterr().out

    shown("import giaann_dask as gd\ndef mine():\n    return gd.open('none')")
    for cell, source in (
        ("mine()", "gd.open('none')"),
        ("gd.train('a', 'b', profil=1)", "gd.train('a', 'b', profil=1)"),
    ):
        said = shown(cell)
        assert source in said
        assert str(ROOT / "giaann_dask") not in said
        assert "site-packages" not in said
        assert re.fullmatch(r"\w+Error: (there is no network at none|train has no parameter).*", said.splitlines()[-1])
    monkeypatch.setenv("GIAANN_TRACEBACK", "1")
    assert str(ROOT / "giaann_dask") in shown("mine()")


def test_errors_about_text_name_the_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "The miller carried the flour."}\n')
    assert run(["train", str(tmp_path / "a.jsonl"), "--network", str(tmp_path / "net"), "--workers", "0"]) == 2
    assert "choose --text-field" in capsys.readouterr().err
    (tmp_path / "b.txt").write_text("Go on.\n")
    assert run(["train", str(tmp_path / "b.txt"), "--network", str(tmp_path / "net"), "--workers", "0"]) == 2
    assert "fewer --set seed_tokens" in capsys.readouterr().err
    with gd.connect(workers=0) as client, pytest.raises(GiaannError, match="fewer seed_tokens"):
        gd.train(tmp_path / "b.txt", tmp_path / "net", client=client)


def test_every_command_names_its_options() -> None:
    commands = [each for each in commands_below(command_line) if not isinstance(each, click.Group)]
    assert [each.name for each in commands if not isinstance(each, Command)] == []


def test_names_in_the_text_of_an_error_survive_pickling_and_values_stay() -> None:
    error = OptionError("top_k is 'top_k' in /top_k/device, my.device", "", "choose device or a-top_k", ("device",))
    for each in (error, pickle.loads(pickle.dumps(error)), error.at("there")):
        assert str(each).endswith("top_k is 'top_k' in /top_k/device, my.device; choose device or a-top_k")
        each.choose_spelling(str.upper)
        assert str(each).endswith("TOP_K is 'top_k' in /top_k/device, my.device; choose DEVICE or a-top_k")


def texts_of_errors() -> Iterator[tuple[str, str]]:
    """Yield where an error is made, and what is written there of its text."""
    names = {name for name, value in vars(errors).items() if isinstance(value, type)}
    for path in sorted((ROOT / "giaann_dask").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
                inside = {id(each) for part in ast.walk(node) if isinstance(part, ast.FormattedValue)
                          for each in ast.walk(part)}  # fmt: skip
                for each in ast.walk(node):
                    if isinstance(each, ast.Constant) and isinstance(each.value, str) and id(each) not in inside:
                        yield f"{path.relative_to(ROOT)}:{node.lineno}", each.value


def test_no_text_of_an_error_writes_an_option_out() -> None:
    # A whole command.
    allowed = re.compile("giaann-dask cluster --scheduler-file FILE, or dask scheduler --scheduler-file FILE")
    shown = [(place, allowed.sub("", text)) for place, text in texts_of_errors()]
    # What only a command or a script can raise speaks its language.
    own = ("giaann_dask/cli/", "giaann_dask/workflows/")
    assert [found for found in shown if OPTION.search(found[1]) and not found[0].startswith(own)] == []


def test_no_remedy_is_to_choose_another_without_saying_what() -> None:
    alone = re.compile(r"\W*choose (another|others|more|one of (them|these))( (number|value|time|order))?\W*")
    assert [found for found in texts_of_errors() if alone.fullmatch(found[1])] == []


def test_waiting_for_results_that_ctrl_c_has_ended_is_not_logged() -> None:
    """Asyncio logs tasks that nobody waits for any more, each with a traceback."""
    logger = logging.getLogger("asyncio")
    assert run(["evaluate", "none", "none.txt", "--workers", "0"]) == 2
    told = []
    for error in (AllExit(), ValueError("told"), None):
        failure = None if error is None else (type(error), error, None)
        told.append(logger.filter(logging.LogRecord("asyncio", logging.ERROR, "", 1, "never retrieved", (), failure)))
    assert list(map(bool, told)) == [False, True, True]
