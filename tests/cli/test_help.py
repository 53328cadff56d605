"""Help of all commands: few options first, every option explained, and spelled in one way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import fields

import click
import pytest

from giaann_dask.cli import giaann_dask, run
from giaann_dask.cli.click_ext import MOST_SHOWN, Command, defaults_of, field_helps, shown_default


def below(group: click.Group, before: str = "") -> Iterator[tuple[str, Command]]:
    """Yield the commands of a group by what is typed for them."""
    for name, each in group.commands.items():
        if isinstance(each, click.Group):
            yield from below(each, f"{before}{name} ")
        elif isinstance(each, Command):
            yield before + name, each


COMMANDS = dict(below(giaann_dask))

# Options of where a command runs, and the commands that start or join a cluster.
CLUSTER = {"--workers", "--threads", "--memory-limit", "--protocol"}
JOBS = {"job nightly", "job weekly", "job compare", "job research"}
RUN_ON_A_CLUSTER = {
    "encode",
    "train",
    "plan",
    "evaluate",
    "generate",
    "add",
    "forget",
    "index",
    "diff",
    "island pack",
    "island merge",
    "prune",
    "compact",
    "report",
    "serve",
    "trace",
} | JOBS
# Commands with networks that change their last commit or concern all commits, and those that take NETWORK@REF.
WRITE = {"train", "forget", "index", "compact", "checkout", "island join", "island merge", "job nightly", "unpersist"}
READ_SEVERAL = {"add", "diff"}
COMPUTE_DENSELY = {"train", "evaluate", "generate", "report", "serve"} | JOBS


def options(command: click.Command) -> list[click.Option]:
    return [each for each in command.params if isinstance(each, click.Option)]


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """Return the options that a help lists."""
    capsys.readouterr()
    assert run([*arguments]) == 0
    said = capsys.readouterr().out.partition("\nOptions:\n")[2]
    words = (line.split()[0].rstrip(",") for line in said.splitlines() if line.startswith("  -"))
    return list(words)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_about_fifteen_options_first_and_all_on_request(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = COMMANDS[name]
    first = shown(capsys, *name.split(), "--help")
    assert len(first) <= MOST_SHOWN + 2, first
    if "--help-all" not in first:
        assert len(first) == len(options(command)) + 1
        return
    every = shown(capsys, *name.split(), "--help-all")
    assert set(first) < set(every)
    assert len(every) == len(options(command)) + 1
    assert {each for each in options(command) if each.required} <= {
        each for each in options(command) if set(each.opts) & set(first)
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_explained_once(name: str) -> None:
    assert [each.name for each in options(COMMANDS[name]) if not each.help] == []
    spellings = Counter(text for each in COMMANDS[name].params for text in (*each.opts, *each.secondary_opts))
    assert [text for text, count in spellings.items() if count > 1] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_options_of_clusters_and_devices_are_those_of_commands_that_use_them(name: str) -> None:
    found = {text for each in options(COMMANDS[name]) for text in each.opts}
    if name in RUN_ON_A_CLUSTER:
        assert found >= CLUSTER
    elif name != "cluster":
        assert not found & CLUSTER
    assert ("--device" in found) == (name in COMPUTE_DENSELY)


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_that_read_a_network_take_ref(name: str) -> None:
    named = {each.name for each in COMMANDS[name].params}
    if named & {"network", "networks", "old"}:
        assert ("--ref" in _flags(name)) == (name not in WRITE | READ_SEVERAL)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_most_of_anything_is_spelled_alike(name: str) -> None:
    def limits(each: click.Option) -> bool:
        said = each.help or ""
        return said.startswith("Most ") or said.endswith(" at most.")

    wrong = [
        each for each in options(COMMANDS[name]) if limits(each) and not max(each.opts, key=len).startswith("--max-")
    ]
    assert wrong == []


def test_an_option_has_one_spelling() -> None:
    every = [each.opts for name in COMMANDS for each in options(COMMANDS[name])]
    assert [opts for opts in every if sum(text.startswith("--") for text in opts) != 1] == []
    assert [each.name for name in COMMANDS for each in COMMANDS[name].params if getattr(each, "hidden", False)] == []


@pytest.mark.parametrize(
    "command",
    [
        *("generate net words --tokens 5", "draw net --out x.svg --columns 2", "serve net --places 3"),
        *("tokenizer train a.txt --out b.json --size 9", "compile --cluster tcp://x:1", "inspect net --commit x"),
        *("train a.txt --network net --seed-tokens 12", "train a.txt --network net --no-lif"),
        *("train a.txt --network net --permanence-growth 1", "evaluate net a.txt --rows-mode asked"),
    ],
)
def test_options_of_earlier_names_are_refused(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "No such option" in line or "'asked' is not one of" in line


@pytest.mark.parametrize("name", [name for name in COMMANDS if COMMANDS[name].groups])
def test_options_have_name_default_and_help_of_the_field_that_they_set(name: str) -> None:
    for group in COMMANDS[name].groups.values():
        helps, known = field_helps(group.kind), defaults_of(group.kind)
        every = {each.name for each in fields(group.kind)} if isinstance(group.kind, type) else {*known}
        assert {*group.only, *group.without, *group.shared, *group.first, *group.fixed} <= every, group.place
        assert {*group.only} - {*group.shared} <= {*group.names()}, "each has an option"
        for each in group.options():
            name = each.parameter
            shown = shown_default(group.defaults.get(name, known[name]), name)
            assert helps[name], f"{group.place} does not describe {name}"
            assert each.help == helps[name] + (f"  [default: {shown}]" if shown else "")
            assert each.name == "_".join(filter(None, [group.prefix, name]))


def test_no_command_repeats_a_default_of_a_class() -> None:
    groups = [group for command in COMMANDS.values() for group in command.groups.values()]
    repeated = [
        (group.place, name)
        for group in groups
        for name, default in defaults_of(group.kind).items()
        for chosen in (group.fixed, group.defaults)
        if name in chosen and chosen[name] == default
    ]
    names = {option.name for group in groups for option in group.options()}
    for name, command in COMMANDS.items():
        made = {option for group in command.groups.values() for option in group.names().values()}
        own = [each for each in options(command) if each.name not in made]
        repeated += [(name, each.opts[0]) for each in own if each.name in names and each.to_info_dict()["default"]]
    assert repeated == []


def _flags(name: str) -> set[str]:
    return {text for each in options(COMMANDS[name]) for text in each.opts}


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (("train", "--nonsense"), "giaann-dask train --help"),
        (("train", "--set"), "giaann-dask train --help"),
        (("tokenizer", "train"), "giaann-dask tokenizer train --help"),
        (("generate", "net"), "giaann-dask generate --help"),
        (("nonsense",), "giaann-dask --help"),
    ],
)
def test_usage_errors_name_the_help(arguments: tuple[str, ...], asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"Try '{asked}'.")


def test_bash_completion_is_written(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_GIAANN_DASK_COMPLETE", "zsh_source")
    with pytest.raises(SystemExit) as ended:
        run([])
    assert ended.value.code == 0
    assert "_GIAANN_DASK_COMPLETE=zsh_complete giaann-dask" in capsys.readouterr().out


def test_only_what_no_function_takes_has_a_default_in_a_command() -> None:
    own = set()
    for name, command in COMMANDS.items():
        made = {option for group in command.groups.values() for option in group.names().values()}
        rest = [each for each in options(command) if each.name not in made and not each.multiple]
        own |= {(name, each.opts[0]) for each in rest if each.to_info_dict()["default"]}
    assert own == {("tokenizer train", "--max-subwords")}
