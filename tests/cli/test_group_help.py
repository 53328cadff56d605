"""Commands that are groups of others show their help when none of these is named."""

from __future__ import annotations

import pytest

from giaann_dask.cli import run


@pytest.mark.parametrize("group", [(), ("tokenizer",)], ids=["giaann-dask", "tokenizer"])
def test_a_group_alone_shows_its_help(group: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*group]) == 0
    alone = capsys.readouterr()
    assert run([*group, "--help"]) == 0
    assert alone == capsys.readouterr()
    assert len(alone.out.splitlines()) > 5
