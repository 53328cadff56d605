"""Options that define a new network: ``--set``, a TOML file, and the hidden former options of each field."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from giaann_dask.cli import giaann_dask as command_line
from giaann_dask.cli.options import read_row_options, row_options
from giaann_dask.cli.specification_options import network_options, read_fields
from giaann_dask.cli.spelling import Command
from giaann_dask.spec import Specification
from giaann_dask.spec_profiles import CONTEXT_NAMES


@pytest.fixture
def read() -> Callable[..., dict[str, Any]]:
    """Return a function that reads the fields which some arguments set."""
    found: dict[str, Any] = {}

    @click.command(cls=Command)
    @network_options
    def command(**values: Any) -> None:
        found.clear()
        found.update(read_fields(values))

    def run(*arguments: str) -> dict[str, Any]:
        command.main(list(arguments), standalone_mode=False)
        return dict(found)

    return run


@pytest.mark.parametrize(
    ("former", "setting", "value"),
    [
        (("--seed-tokens", "12"), "seed_tokens=12", 12),
        (("--no-lif",), "lif=false", False),
        (("--crop",), "crop=true", True),
        (("--proximity-scale", "5"), "proximity_scale=5", 5.0),
        (("--strength-limit", "7"), "strength_limit=7", 7.0),
        (("--branch-order", "random"), "branch-order=random", "random"),
        (("--contexts", "all"), "contexts=all", CONTEXT_NAMES),
        (("--contexts", "1,2"), "contexts=1,2", ("1", "2")),
        (("--pos-factors", "VERB=10,ADJ=3"), "pos_factors=VERB=10,ADJ=3", {"VERB": 10.0, "ADJ": 3.0}),
        (("--column-segments", "2", "--feature-segments", "3"), "segment_counts=2,3", (2, 3)),
        (("--placement", "balanced"), "placement=balanced", "balanced"),
    ],
)
def test_former_options_and_settings_read_alike(
    read: Callable[..., dict[str, Any]], former: tuple[str, ...], setting: str, value: object
) -> None:
    name = setting.partition("=")[0].replace("-", "_")
    assert read(*former) == read("--set", setting) == {name: value}


def test_a_file_gives_way_to_options(read: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    file = tmp_path / "network.toml"
    file.write_text(
        'profile = "v2"\nlif = false\nbranches = 4\nseed-tokens = 6\nsegment_counts = [3, 2]\n'
        'contexts = ["1", "2"]\npos_factors = {VERB = 2, NOUN = 10.0}\nstrength_limit = 30\n'
    )
    fields = read("--specification", str(file), "--branches", "3", "--set", "seed_tokens=9", "--tokenizer", "none")
    assert fields == {
        "profile": "v2",
        "lif": False,
        "branches": 3,
        "seed_tokens": 9,
        "segment_counts": (3, 2),
        "contexts": ("1", "2"),
        "pos_factors": {"VERB": 2.0, "NOUN": 10.0},
        "strength_limit": 30.0,
        "tokens": "words",
    }
    file.write_text("seed_token = 12\n")
    with pytest.raises(ValueError, match=r"network\.toml has 'seed_token'.*did you mean seed_tokens"):
        read("--specification", str(file))


def test_every_field_of_a_specification_can_be_set(read: Callable[..., dict[str, Any]]) -> None:
    texts = {"segment_counts": "4,4", "contexts": "1", "pos_factors": "VERB=2"}
    for field in dataclasses.fields(Specification):
        default = getattr(Specification(), field.name)
        text = texts.get(field.name, "1" if default is None else str(default).lower())
        assert list(read("--set", f"{field.name}={text}")) == [field.name]


def test_help_lists_options_in_sections_without_former_spellings() -> None:
    shown = CliRunner().invoke(command_line, ["train", "--help"], prog_name="giaann-dask").output
    titles = [line for line in shown.splitlines() if line.endswith(":") and not line.startswith((" ", "Usage"))]
    assert titles[:2] == ["Options:", "New network:"]
    assert titles[-2:] == ["Cluster:", "Output and logging:"]
    hidden = ("--seed-tokens", "--no-lif", "--regions", "--pos-factors", "--weakening", "--permanence-growth")
    assert [option for option in hidden if option in shown] == []


def test_what_was_always_refused_is_no_option() -> None:
    for option in ("--weakening", "--permanence-growth", "--permanence-decay"):
        result = CliRunner().invoke(command_line, ["train", "text.txt", "--network", "net", option, "1"])
        assert result.exit_code == 2
        assert "No such option" in result.output


@pytest.mark.parametrize(("given", "mode"), [("remote", "remote"), ("asked", "remote"), ("copied", "replicated")])
def test_former_names_of_row_modes_are_accepted(given: str, mode: str) -> None:
    @click.command()
    @row_options
    def shown(**values: Any) -> None:
        click.echo(read_row_options(values).mode)

    assert CliRunner().invoke(shown, ["--rows", given]).output == f"{mode}\n"
