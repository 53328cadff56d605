"""Errors in the language of the command line: options instead of the parameters of Python.

Covers: which option of a command sets which parameter, and commands whose errors name it. Does not cover: the text of
errors (`giaann_dask.errors`) and exit codes (`giaann_dask.cli`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from giaann_dask.errors import GiaannError

# Parameters that a command sets by options of other names; the first that the command has is meant.
_OTHERWISE = {
    "body_bytes": ("max_body",),
    "cache_bytes": ("row_memory",),
    "depth": ("beam_depth",),
    "hot_bytes": ("hot_memory",),
    "maximum_columns": ("columns",),
    "maximum_connections": ("connections",),
    "maximum_features": ("features",),
    "maximum_s": ("max_seconds",),
    "maximum_sequences": ("max_sequences",),
    "name": ("model_name",),
    "order": ("selection",),
    "prompt_characters": ("max_prompt",),
    "region_bytes": ("region_size",),
    "score": ("beam_score",),
    "segment_counts": ("column_segments",),
    "state_bytes": ("state_memory",),
    "tokens": ("max_tokens", "tokenizer"),
    "way": ("rows",),
    "width": ("beam_width",),
    "width_inches": ("width",),
}


class Command(click.Command):
    """A command whose errors name its options."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error of ours that passes names options."""
        try:
            return super().invoke(ctx)
        except GiaannError as error:
            error.choose_spelling(lambda name: spelled(name, ctx))
            raise


class Group(click.Group):
    """A group of such commands."""

    command_class = Command


def spelled(name: str, context: click.Context) -> str:
    """Return the option that sets a parameter: of this command, else of another one, else the parameter's name.

    Parameters
    ----------
    name : str
        The parameter, as Python spells it.
    context : click.Context
        That of the command that failed.
    """
    for command in (context.command, *_commands(context.find_root().command)):
        options = {option.name: option for option in command.params if isinstance(option, click.Option)}
        for candidate in (name, *_OTHERWISE.get(name, ())):
            if candidate in options:
                return max(options[candidate].opts, key=len)
    return name


def _commands(command: click.Command) -> Iterator[click.Command]:
    """Yield a command and all below it."""
    yield command
    if isinstance(command, click.Group):
        for each in command.commands.values():
            yield from _commands(each)
