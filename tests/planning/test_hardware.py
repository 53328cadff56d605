"""Machines are read from TOML; a wrong value names the field of the file, never an option of a command."""

from __future__ import annotations

from pathlib import Path

import pytest

import giaann_dask as gd
from giaann_dask.errors import GiaannError, InputMissingError
from giaann_dask.planning.hardware import Hardware, Machines, Rates

_TEXT = """
[[machines]]
count = 3
memory_bytes = "64 GiB"
workers = 4
role = "storage"

[[machines]]
count = 4
memory_bytes = 8000000000
cores = 8
bandwidth = "125 MB"

[rates]
start_s = 2
"""


def test_a_description_with_units_is_read(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(_TEXT)
    storage, both = Hardware.read(path).machines
    assert (storage.memory_bytes, storage.worker_bytes, storage.role) == (64 << 30, 16 << 30, "storage")
    assert both == Machines(count=4, memory_bytes=8_000_000_000, cores=8, bandwidth=125e6)
    assert Hardware.read(path).rates == Rates(start_s=2.0)
    assert Hardware.read(path).count == 7


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("count = 3", "count = 0"), "machines: 'count' is 0; expected 1 to"),
        (("count = 3", "count = 99999999999999999999"), "'count' is 99999999999999999999"),
        (("count = 3", ""), "machines has no 'count'"),
        (("count = 3", "number = 3\ncount = 3"), "machines does not know 'number'"),
        (('"64 GiB"', '"64 apples"'), "'memory_bytes' is '64 apples'"),
        (('"64 GiB"', '"1e400 GiB"'), "'memory_bytes' is '1e400 GiB'"),
        (('"64 GiB"', "true"), "'memory_bytes' is True"),
        (('"64 GiB"', "nan"), "'memory_bytes' is nan"),
        (('"64 GiB"', "[1]"), "'memory_bytes' is [1]"),
        (('role = "storage"', 'role = "store"'), "'role' is 'store'"),
        (("start_s = 2", "start_s = -1"), "rates: 'start_s' is -1.0"),
        (("[rates]", "[rates"), "is not TOML"),
        (("[rates]", "[links]"), "does not know 'links'"),
        ((_TEXT, "machines = 3"), "machines is 3; expected a table"),
        ((_TEXT, ""), "expected role storage or both"),
    ],
)
def test_what_is_wrong_is_named_by_its_field(tmp_path: Path, change: tuple[str, str], told: str) -> None:
    path = tmp_path / "cluster.toml"
    text = _TEXT.replace(*change)
    assert text != _TEXT
    path.write_text(text)
    with pytest.raises(GiaannError) as error:
        Hardware.read(path)
    error.value.choose_spelling(lambda name: f"--{name}")
    assert told in str(error.value)
    assert str(error.value).startswith(str(path))
    assert "--" not in str(error.value)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputMissingError, match=r"none.toml cannot be read"):
        Hardware.read(tmp_path / "none.toml")


def test_workers_of_one_host_are_a_machine_that_shares_its_cores() -> None:
    with gd.connect(workers=0) as client:
        (machine,) = Hardware.of_cluster(client).machines
    assert (machine.count, machine.workers, machine.role) == (1, 1, "both")
    assert machine.cores >= 1
