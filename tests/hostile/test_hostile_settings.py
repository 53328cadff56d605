"""No seed of hashes, locale, time zone, number of threads, workers, regions or batches changes one byte of a result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from itertools import combinations
from typing import Any

import pytest
from support import hostile_training
from support.hostile_matrix import CASES, chance, repeated_by

pytestmark = pytest.mark.cluster

IN_CI = 1
PROFILES = ("v1", "v2", "contexts")
# Settings by name; of each, what may be chosen.
ENVIRONMENT: dict[str, tuple[dict[str, str], ...]] = {
    "hashes": tuple({"PYTHONHASHSEED": seed} for seed in ("0", "1", "4242", "random")),
    "locale": (
        {"LC_ALL": "C.UTF-8"},
        {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
        # Where a capital I has a dot; what is not installed is taken for C.
        {"LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8"},
    ),
    "zone": tuple({"TZ": zone} for zone in ("UTC", "Pacific/Chatham", "America/St_Johns")),
    "kernels": tuple({"NUMBA_NUM_THREADS": n, "OMP_NUM_THREADS": n} for n in ("1", "2", "5")),
}
SETTINGS: dict[str, tuple[dict[str, Any], ...]] = {
    "workers": tuple({"workers": number} for number in (0, 1, 2)),
    "threads": tuple({"threads": number} for number in (1, 3)),
    "regions": tuple({"regions": number} for number in (1, 3, 8)),
    "placement": tuple({"placement": name} for name in ("hash", "balanced", "co-occurrence")),
    "batch": (
        {"batch_sequences": 7, "block_characters": 1000},
        {"batch_sequences": 25, "block_characters": 3000, "accumulate": 3},
        {"batch_sequences": 8192},
    ),
    "order": tuple({"order": name} for name in ("corpus", "random", "least-overlap")),
    "commits": ({"commit_sequences": 10, "keep_commits": 2}, {"hot_bytes": 0, "rounds_in_flight": 1}, {}),
    "source": tuple({"source": name} for name in ("text", "corpus", "parts", "twice")),
}
LEVELS = {name: len(levels) for name, levels in {**ENVIRONMENT, **SETTINGS}.items()}
_SPECIFICATION = ("regions", "placement")
_TRAINING = ("batch", "order", "commits")

Row = dict[str, int]


def rows() -> list[Row]:
    """Return choices of all settings together, so that every two choices meet in one, as the seed decides."""
    choose = chance("settings")
    left = {((a, i), (b, j)) for a, b in combinations(LEVELS, 2) for i in range(LEVELS[a]) for j in range(LEVELS[b])}
    found = []
    while left:
        first = choose.choice(sorted(left))
        tried = [{name: choose.randrange(n) for name, n in LEVELS.items()} | dict(first) for _ in range(40)]
        best = max(tried, key=lambda row: len(left & pairs(row)))
        left -= pairs(best)
        found.append(best)
    return found


def pairs(row: Row) -> set[tuple[tuple[str, int], tuple[str, int]]]:
    return {((a, row[a]), (b, row[b])) for a, b in combinations(LEVELS, 2)}


def identity(row: Row) -> str:
    return "-".join(str(row[name]) for name in LEVELS)


def digests(profiles: tuple[str, ...], row: Row) -> dict[str, str]:
    """Return the digests of networks that another process trains under the settings of a row."""
    values = {name: levels[row[name]] for name, levels in SETTINGS.items()}
    settings = {
        "specification": {key: value for name in _SPECIFICATION for key, value in values[name].items()},
        "training": {key: value for name in _TRAINING for key, value in values[name].items()},
        **{key: value for name in ("workers", "threads", "source") for key, value in values[name].items()},
    }
    environment = {key: value for name, levels in ENVIRONMENT.items() for key, value in levels[row[name]].items()}
    done = subprocess.run(
        [sys.executable, "-m", "support.hostile_training", json.dumps([profiles, settings])],
        capture_output=True,
        timeout=280,
        check=False,
        env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, f"{settings} {environment}\n{done.stderr.decode(errors='replace')}"
    found: dict[str, str] = json.loads(done.stdout)
    return found


@cache
def expected_of(profiles: tuple[str, ...]) -> dict[str, str]:
    """Return digests without any settings, of this process."""
    return hostile_training.run(list(profiles), {})


def check(profiles: tuple[str, ...], tried: list[Row]) -> None:
    """Train under the settings of some rows; all of them are tried before any is told of."""
    told = []
    for row in tried:
        print(identity(row), flush=True)
        found, expected = digests(profiles, row), expected_of(profiles)
        assert found.keys() == expected.keys()
        if wrong := [name for name in found if found[name] != expected[name]]:
            chosen = {name: {**ENVIRONMENT, **SETTINGS}[name][level] for name, level in row.items()}
            told.append(f"{identity(row)}: {wrong} differ under {chosen}")
    command = repeated_by("test_hostile_settings.py", [each.partition(":")[0] for each in told])
    lines = "\n".join(told)
    assert not told, f"{len(told)} of {len(tried)} settings:\n{lines}\ntry them again alone: {command}"


def test_every_two_choices_meet() -> None:
    chosen = rows()
    assert chosen == rows()
    assert len(chosen) < 30
    assert len({identity(row) for row in chosen}) == len(chosen)


def test_a_sample_of_settings_changes_nothing() -> None:
    named = [row for row in rows() if identity(row) in CASES]
    check(("v1", "contexts"), named if CASES else [row for row in rows() if row["workers"]][:IN_CI])


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_two_settings_together_change_anything() -> None:
    check(PROFILES, rows())
