"""Options that define a new network: ``--set``, a TOML file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from giaann_dask.cli import giaann_dask as command_line
from giaann_dask.cli.click_ext import Command
from giaann_dask.cli.shared_options import network_options, read_fields
from giaann_dask.models.contexts.specification import CONTEXT_NAMES
from giaann_dask.spec import Specification


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
    ("setting", "value"),
    [
        ("seed_tokens=12", 12),
        ("lif=false", False),
        ("crop=true", True),
        ("proximity_scale=5", 5.0),
        ("strength_limit=7", 7.0),
        ("branch-order=random", "random"),
        ("contexts=all", CONTEXT_NAMES),
        ("contexts=1,2", ("1", "2")),
        ("pos_factors=VERB=10,ADJ=3", {"VERB": 10.0, "ADJ": 3.0}),
        ("segment_counts=2,3", (2, 3)),
        ("placement=balanced", "balanced"),
    ],
)
def test_settings_are_read_by_the_type_of_their_field(
    read: Callable[..., dict[str, Any]], setting: str, value: object
) -> None:
    assert read("--set", setting) == {setting.partition("=")[0].replace("-", "_"): value}


def test_a_file_gives_way_to_options(read: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    file = tmp_path / "network.toml"
    file.write_text(
        'profile = "v2"\nlif = false\nbranches = 4\nseed-tokens = 6\nsegment_counts = [3, 2]\n'
        'contexts = ["1", "2"]\npos_factors = {VERB = 2, NOUN = 10.0}\nstrength_limit = 30\n'
    )
    fields = read("--specification", str(file), "--set", "branches=3", "--set", "seed_tokens=9", "--tokenizer", "none")
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
    with pytest.raises(ValueError, match=r"network\.toml has 'seed_token'.*did you mean 'seed_tokens'"):
        read("--specification", str(file))


def test_every_field_of_a_specification_can_be_set(read: Callable[..., dict[str, Any]]) -> None:
    texts = {"segment_counts": "4,4", "contexts": "1", "pos_factors": "VERB=2", "model_options": "reach=2"}
    for field in dataclasses.fields(Specification):
        if field.name == "package":
            continue
        default = getattr(Specification(), field.name)
        text = texts.get(field.name, "1" if default is None else str(default).lower())
        assert list(read("--set", f"{field.name}={text}")) == [field.name]


def test_options_of_other_models_have_values_of_toml(read: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    wanted = {"reach": 2, "backoff": 0.5, "name": "mill"}
    assert read("--set", "model_options=reach=2, backoff=0.5,name=mill")["model_options"] == wanted
    (tmp_path / "s.toml").write_text('model_options = {reach = 2, backoff = 0.5, name = "mill"}')
    assert read("--specification", str(tmp_path / "s.toml"))["model_options"] == wanted
    with pytest.raises(ValueError, match="model_options is 'reach'; expected options such as reach=2"):
        read("--set", "model_options=reach")
    with pytest.raises(ValueError, match="--set 'package=x'; expected a field"):
        read("--set", "package=x")


def test_help_lists_options_in_sections() -> None:
    shown = CliRunner().invoke(command_line, ["train", "--help"], prog_name="giaann-dask").output
    titles = [line for line in shown.splitlines() if line.endswith(":") and not line.startswith((" ", "Usage"))]
    assert titles[:2] == ["Options:", "New network:"]
    assert titles[-2:] == ["Cluster:", "Output and logging:"]
