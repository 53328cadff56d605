"""The scripts of ``workflows/``, which are no package, for tests."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import click

SCRIPTS = Path(__file__).resolve().parents[2] / "workflows"


def script(name: str) -> click.Command:
    """The command of a script, loaded from its file."""
    specification = spec_from_file_location(f"workflow_{name}", SCRIPTS / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = module_from_spec(specification)
    # Dataclasses look their module up.
    sys.modules[specification.name] = module
    specification.loader.exec_module(module)
    found = getattr(module, name)
    assert isinstance(found, click.Command)
    return found
