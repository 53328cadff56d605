"""Fixtures shared by all tests."""

from __future__ import annotations

import fcntl
import gc
import logging
import os
import shutil
import subprocess
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings
from support.examples import QUICK, THOROUGH
from support.signals import handle_ignored_signals
from support.village import SENTENCES, SMALL_PARTS, Undisturbed, write_village

# Kernels of a device run in numba's simulator, which it chooses before it is imported.
os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")
# Dask measures schedulers and workers twice a second, which is a fifth of what an idle cluster takes.
os.environ.setdefault("DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__INTERVAL", "2s")

import giaann_dask as gd
from giaann_dask.lazy import MARK
from giaann_dask.local_files import code_cache

ROOT = Path(__file__).resolve().parent.parent
Report = TypeVar("Report", pytest.CollectReport, pytest.TestReport)

# As `giaann_dask.cli.main` does: most objects are those of modules.
gc.set_threshold(10_000)

handle_ignored_signals()

# Examples take as long as the machine and its other users let them: what is tested is what they give.
# Few of them in the ordinary tests, the same in every run, so that a change is judged by what it changes; many, and
# others in every run, where there is time: `make test-all`.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", patient, max_examples=QUICK, derandomize=True)
settings.register_profile("thorough", patient, max_examples=THOROUGH)
settings.load_profile("quick")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip a file that imports PyTorch where it is not installed: it is the extra `torch`."""
    return _skipped_without_torch((yield))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skip a test that turns out to need PyTorch, perhaps in another process, where it is not installed."""
    return _skipped_without_torch((yield))


def _skipped_without_torch(report: Report) -> Report:
    said = (report.longreprtext, *(text for _, text in report.sections)) if report.failed else ()
    if any("No module named 'torch'" in text for text in said) and find_spec("torch") is None:
        report.outcome, report.longrepr = "skipped", (report.nodeid, 0, "Skipped: needs PyTorch (extra torch)")
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that start clusters, then with long ones: none that takes long is left beside the last."""
    # The example's model is trained by worker processes, too, which it cannot say by a mark of this project.
    examples = ROOT / "examples"
    clusters = {each.path for each in items if each.get_closest_marker("cluster") or examples in each.path.parents}
    nbytes = {path: path.stat().st_size for path in {item.path for item in items}}
    items.sort(key=lambda item: (item.path not in clusters, -nbytes[item.path]))


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Fail a test that leaves logging configured: a later test would not find what is logged."""
    yield
    root = logging.getLogger()
    ours = [each for each in root.manager.loggerDict.values() if isinstance(each, logging.Logger)]
    changed = [
        each.name
        for each in ours
        if each.name.partition(".")[0] == gd.__name__
        and (each.handlers or each.level or each.disabled or not each.propagate)
    ]
    assert (changed, root.level, root.disabled, root.manager.disable) == ([], logging.WARNING, False, 0)


@pytest.fixture(scope="module", autouse=True)
def _old_objects_are_not_traversed() -> None:
    """Keep what earlier files left out of later collections: of a process of many tests each would take 2 seconds."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _compiling_is_said_already() -> None:
    """Let no test find in standard error that another one, or a process of it, has to compile."""
    code_cache().mkdir(parents=True, exist_ok=True)
    for stream in ("", ".process", ".worker"):
        (code_cache() / f"{MARK}{stream}").touch()


@pytest.fixture(autouse=True)
def _compiled_code_where_it_was() -> Iterator[None]:
    """Fail a test that leaves another cache of compiled code: processes of later tests would compile everything."""
    before = os.environ.get("NUMBA_CACHE_DIR")
    yield
    assert os.environ.get("NUMBA_CACHE_DIR") == before


@pytest.fixture(scope="session")
def shared_folder() -> Path:
    """The folder of real text and golden files beside the checkout; skips where it is absent."""
    folder = ROOT.parent / "shared"
    if not (folder / "golden").is_dir():
        pytest.skip("needs the golden files and real text in ../shared, which is not here")
    return folder


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """A text of a village, its corpus in small parts, and what a run without cluster processes exports."""
    # One for all processes of pytest-xdist, as it takes three seconds.
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "undisturbed"
    text, corpus, exported = (folder / name for name in ("village.txt", "corpus", "exported.npz"))
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not exported.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            write_village(text, SENTENCES)
            with gd.connect(workers=0) as client:
                gd.encode(text, corpus, client=client, text=SMALL_PARTS)
                network = gd.train(text, folder / "net", client=client)
                report = network.training_report
            assert report.trained > SENTENCES / 2
            network.export(folder / "net.npz").connections.rename(exported)
    return Undisturbed(text, corpus, exported.read_bytes())


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The synthetic conformance data that is part of the project."""
    return ROOT / "tests" / "data"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 8 MiB; skip the test where that is not allowed."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount a file system of limited size")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)
