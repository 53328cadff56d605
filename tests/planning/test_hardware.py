"""Hardware is read from TOML and written to it, and says which link is between two workers."""

import pytest

from giaann_dask.errors import GiaannError, InputMissingError
from giaann_dask.planning.hardware import Hardware, Link, Rates, WorkerKind

_TEXT = """
hosts_per_rack = 2

[[workers]]
name = "store"
count = 3
memory_bytes = "64 GiB"
role = "storage"
per_host = 1

[[workers]]
name = "count"
count = 4
memory_bytes = 8000000000
cores = 8
role = "compute"
per_host = 4
price_per_hour = 1.5

[links.rack]
bandwidth = "125 MB"
latency = "2 ms"

[rates]
batch_sizes = [1, 64]
counted_per_s = [500, 9000]
"""


def test_a_description_with_units_is_read():
    hardware = Hardware.from_toml(_TEXT)
    assert [kind.memory_bytes for kind in hardware.workers] == [64 << 30, 8_000_000_000]
    assert hardware.links["rack"] == Link(bandwidth=125e6, latency=2e-3)
    assert hardware.rates == Rates(batch_sizes=(1, 64), counted_per_s=(500.0, 9000.0))
    assert [kind.name for kind in hardware.storing()] == ["store"]
    assert [kind.name for kind in hardware.computing()] == ["count"]
    assert Hardware.from_toml(hardware.toml()) == hardware


def test_workers_are_on_hosts_and_racks():
    places = list(Hardware.from_toml(_TEXT).places())
    assert [(place.host, place.rack) for place in places] == [(0, 0), (1, 0), (2, 1), *[(3, 1)] * 4]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("count = 3", "count = 0"), "workers: count is 0; expected 1 or more"),
        (("count = 3", ""), "workers has no 'count'"),
        (("count = 3", "number = 3\ncount = 3"), "workers does not know 'number'"),
        (('"64 GiB"', '"64 apples"'), "memory_bytes is '64 apples'"),
        (('"64 GiB"', "true"), "memory_bytes is True"),
        (('role = "compute"', 'role = "storage"'), "expected workers of role compute or both"),
        (("links.rack", "links.street"), "links is 'street'"),
        (("[500, 9000]", "[500]"), "expected 2 rates"),
        (("[1, 64]", "[64, 1]"), "expected ascending"),
        (("[rates]", "[rates"), "is not TOML"),
        (('name = "count"', 'name = "store"'), "a different name"),
        (("[links.rack]", "[links]\nrack = 1\n[other]"), "links.rack is 1"),
    ],
)
def test_what_is_wrong_is_named(change, told):
    text = _TEXT.replace(*change)
    assert text != _TEXT
    with pytest.raises(GiaannError) as error:
        Hardware.from_toml(text, "cluster.toml")
    assert told in str(error.value)
    assert str(error.value).startswith("cluster.toml")


def test_a_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(InputMissingError, match=r"none.toml cannot be read"):
        Hardware.read(tmp_path / "none.toml")


def test_rates_between_measured_batch_sizes_are_between_theirs():
    rates = Rates()
    assert rates.counted(1) < rates.counted(4) < rates.counted(16)
    assert rates.counted(1 << 20) == rates.counted_per_s[-1]


def test_a_kind_of_worker_says_what_it_does():
    kind = WorkerKind(name="gpu", count=1, memory_bytes=1, role="compute")
    assert (kind.stores, kind.computes) == (False, True)
