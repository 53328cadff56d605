"""Many regions: what a network costs follows its content, and nothing of them is seen in what is exported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import icechunk
import pytest
from distributed import Client
from support.village import write_village

import giaann_dask as gd
from giaann_dask.data import sample_test_text
from giaann_dask.store import manifest as manifests
from giaann_dask.store.manifest import Manifest
from giaann_dask.store.network_store import NetworkStore
from giaann_dask.training import region_budgets
from giaann_dask.training.regions import Regions
from giaann_dask.training.training_report import TrainingReport

pytestmark = pytest.mark.cluster

# Of the costs of 8 regions.
MOST = 3


@dataclass
class Costs:
    """What one network took: tasks, and requests to its store by stage."""

    network: gd.Network
    report: TrainingReport
    tasks: dict[str, int]
    requests: dict[str, int]


class Requests:
    """Counts what is asked of every store of this process."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count: Counter[str] = Counter()
        for name in ("get", "set", "list_prefix", "list_dir"):
            patch.setattr(icechunk.IcechunkStore, name, self._counted(name, getattr(icechunk.IcechunkStore, name)))

    def _counted(self, name: str, original: Any) -> Any:
        def counted(*arguments: Any, **named: Any) -> Any:
            self.count[name] += 1
            return original(*arguments, **named)

        return counted

    def take(self) -> int:
        """Return how many requests there were since the last time."""
        total = self.count.total()
        self.count.clear()
        return total


def submitted(client: Client) -> int:
    """How many tasks the scheduler has been given so far, by the transitions that it has made."""
    return int(client.cluster.scheduler.transition_counter)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A cluster in this process."""
    with gd.connect(workers=0) as client:
        yield client


@pytest.fixture(scope="module")
def costs(client: Client, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Costs]:
    """The costs of networks of 8 and of 1,000 regions."""
    folder, text = tmp_path_factory.mktemp("many"), str(sample_test_text())
    more = write_village(folder / "more.txt", 30)
    with pytest.MonkeyPatch.context() as patch:
        requests = Requests(patch)
        return {regions: measure(client, requests, folder / str(regions), text, more) for regions in (8, 1000)}


def measure(client: Client, requests: Requests, path: Path, text: str, more: Path) -> Costs:
    specification = gd.Specification(regions=int(path.name))
    tasks, asked = {}, {}
    began = submitted(client)

    def done(stage: str) -> None:
        nonlocal began
        tasks[stage], asked[stage] = submitted(client) - began, requests.take()
        began = submitted(client)

    network = gd.train(text, path, client=client, specification=specification)
    report = network.training_report
    done("train")
    gd.Network(path).describe()
    done("inspect")
    network.export(path.with_suffix(".npz"))
    done("export")
    network.evaluate(text, client=client, options=gd.EvaluationOptions(max_sequences=5))
    done("evaluate")
    gd.train(str(more), path, client=client)
    done("train more")
    return Costs(network, report, tasks, asked)


def test_costs_do_not_follow_the_number_of_regions(costs: dict[int, Costs]) -> None:
    few, many = costs[8], costs[1000]
    assert many.report.tasks <= MOST * few.report.tasks
    for stage in few.tasks:
        # What looks at the store alone submits nothing.
        assert many.tasks[stage] <= MOST * max(few.tasks[stage], 20), stage
        assert many.requests[stage] <= MOST * few.requests[stage], stage
    folders = [cost.network.path for cost in (few, many)]
    files = [sum(file.is_file() for file in folder.rglob("*")) for folder in folders]
    assert files[1] <= MOST * files[0]


def test_many_regions_begin_with_fewer(costs: dict[int, Costs]) -> None:
    assert costs[1000].network.specification.regions == 1000
    assert costs[1000].network.describe()["regions"] == manifests.FIRST_REGIONS


def test_exports_do_not_depend_on_regions_and_placement(client: Client, tmp_path: Path) -> None:
    found = set()
    for regions, placement in [(1, "hash"), (8, "co-occurrence"), (1000, "balanced")]:
        rule = gd.Specification(regions=regions, placement=placement)
        path = tmp_path / f"{regions} {placement}"
        network = gd.train(str(sample_test_text()), path, client=client, specification=rule)
        found.add(tuple(file.read_bytes() for file in network.export(path.with_suffix(".npz"))))
        assert network.describe()["specification"]["regions"] == regions, "inspect tells it"
    assert len(found) == 1


def split_from(nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let regions be split from so many decoded bytes on, as long as there are too few."""
    monkeypatch.setattr(region_budgets, "SMALL_BYTES", nbytes)


def test_a_network_gets_its_regions_as_it_grows(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = write_village(tmp_path / "village.txt", 200)
    options = gd.TrainingOptions(batch_sequences=40, block_characters=2500, commit_sequences=80)
    exports = {}
    for small in (1 << 22, 2000):
        split_from(small, monkeypatch)
        path, rule = tmp_path / str(small), gd.Specification(regions=25)
        network = gd.train(str(text), path, client=client, specification=rule, options=options)
        report = network.training_report
        exports[report.regions] = [file.read_bytes() for file in network.export(path.with_suffix(".npz"))]
        assert report.regions == network.describe()["regions"]
    assert list(exports) == [manifests.FIRST_REGIONS, 25]
    assert exports[25] == exports[manifests.FIRST_REGIONS]


def test_regions_are_split_while_they_are_small_where_the_input_will_fill_them(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = write_village(tmp_path / "village.txt", 300)
    options = gd.TrainingOptions(batch_sequences=40, block_characters=2500, region_bytes=300_000)
    split_from(2000, monkeypatch)
    split, exports, sizes = Regions.split, list[str](), dict[str, list[int]]()
    for name in ("known", "unknown"):
        sizes[name] = list[int]()

        def spy(regions: Regions, region: int, *place: int, to: list[int] = sizes[name]) -> None:
            to.append(regions.runs.decoded_bytes(region))
            split(regions, region, *place)

        monkeypatch.setattr(Regions, "split", spy)
        source = str(text) if name == "known" else iter(text.read_text(encoding="utf-8").split("\n\n"))
        rule = gd.Specification(regions=2)
        network = gd.train(source, tmp_path / name, client=client, specification=rule, options=options)
        exports.append(network.digest())
    # Without that, a region is split when it is full.
    assert min(sizes["known"]) < options.region_bytes < min(sizes["unknown"])
    assert exports[0] == exports[1]


def test_a_network_that_began_with_all_its_regions_can_be_resumed(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, rule = str(write_village(tmp_path / "text.txt", 60, 2)), gd.Specification(regions=20)
    more = str(write_village(tmp_path / "more.txt", 30))
    exports = []
    for name, first in (("as before", 65_536), ("now", manifests.FIRST_REGIONS)):
        with monkeypatch.context() as patch:
            patch.setattr(manifests, "FIRST_REGIONS", first)
            gd.train(text, tmp_path / name, client=client, specification=rule)
        network = gd.train(more, tmp_path / name, client=client, specification=rule)
        exports.append([file.read_bytes() for file in network.export(tmp_path / f"{name}.npz")])
        stored = NetworkStore(network.path)
        begun: Manifest = stored.open(stored.head()).manifest()
        assert begun.first_regions == min(first, 20)
    assert exports[0] == exports[1]
