"""The hostile matrix: a seed, which of its cases a run tries, and how a case that failed is tried again alone.

Its parts are tests of their own: damage (`test_hostile_damage`), settings that may change no result
(`test_hostile_settings`), kills (`test_hostile_kills`) and what a purge leaves (`test_hostile_residue`). A new part
draws its sample by `drawn` as these do. Terminals (`test_hostile_terminals`), home folders (`test_hostile_homes`) and
limits of the system (`test_hostile_limits`) are tried as a whole; forged bundles are in
``tests/islands/test_tampering.py``.

The environment decides what is tried:

- ``GIAANN_HOSTILE_SEED``: a whole number, from which every sample, position and moment follows.
- ``GIAANN_HOSTILE_CASES``: identities of cases, separated by commas; these are tried, and no others.
- ``GIAANN_HOSTILE_STORES``: a folder in which the stores of the damage cases are kept from one run to the next.
  Icechunk names its files at random, so an identity names the same file in the same stores alone.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

SEED = int(os.environ.get("GIAANN_HOSTILE_SEED", "18"))
CASES = tuple(filter(None, os.environ.get("GIAANN_HOSTILE_CASES", "").split(",")))

T = TypeVar("T")


def chance(*about: object) -> random.Random:
    """Return random numbers that the seed and what they are about decide."""
    return random.Random(":".join(map(str, (SEED, *about))))


def drawn(cases: Sequence[T], count: int, identity: Callable[[T], str] = str) -> list[T]:
    """Return so many of the cases, or those that the environment names; of those, fewer or none where others are.

    Parameters
    ----------
    cases : sequence
        In an order that does not change from run to run.
    count : int
        Size of the sample.
    identity : callable, optional
        Of a case.
    """
    if CASES:
        return [case for case in cases if identity(case) in CASES]
    return chance("sample").sample(cases, min(count, len(cases)))


def repeated_by(file: str, identities: Sequence[str], stores: object = None) -> str:
    """Return the command that tries some cases again alone."""
    kept = "" if stores is None else f"GIAANN_HOSTILE_STORES={stores} "
    cases = ",".join(identities)
    return f"{kept}GIAANN_HOSTILE_SEED={SEED} GIAANN_HOSTILE_CASES='{cases}' pytest -m 'not slow' tests/hostile/{file}"
