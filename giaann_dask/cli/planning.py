"""Define the command ``plan``, which estimates what a training would cost, and the command that trains so."""

from __future__ import annotations

import shlex
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from giaann_dask.cli.click_ext import Command, options_of
from giaann_dask.cli.output import answer, figures
from giaann_dask.cli.progress import waiting
from giaann_dask.cli.shared_options import (
    FILE_PATH,
    INPUTS,
    common_options,
    network_options,
    new_text_options,
    prepared,
    read_fields,
)

if TYPE_CHECKING:
    from giaann_dask.api.text_options import TextOptions
    from giaann_dask.cluster import ClusterOptions
    from giaann_dask.planning.hardware import Hardware

# Of a plan for machines that are not connected.
_SCHEDULER_FILE = "scheduler.json"
# Options of the plan that its command does not repeat.
_OWN = ("json", "verbose")
_RAW = "giaann_dask.raw_arguments"


class _PlanCommand(Command):
    """Command that keeps its arguments as they were given, for the command that it prints."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the arguments and parse them."""
        ctx.meta[_RAW] = tuple(args)
        return super().parse_args(ctx, args)


@click.command(cls=_PlanCommand)
@INPUTS
@click.option("--hardware", type=FILE_PATH, metavar="FILE", help="TOML file of the machines.  [default: the cluster]")
@options_of("sample", "giaann_dask.planning.estimate.plan", "Sample", only=("sequences", "sample_sequences"))
@network_options
@new_text_options
@common_options
@click.pass_context
def plan(
    context: click.Context,
    /,
    inputs: tuple[str, ...],
    hardware: Path | None,
    sample: dict[str, Any],
    text: TextOptions,
    cluster: ClusterOptions,
    **values: Any,
) -> None:
    """Estimate a training: whether it fits, memory, time, what limits the rate, and the smallest cluster as fast.

    A sample that is spread over all of the text is trained in this process, and nothing is stored. A training that does
    not fit into the memory of the machines ends with exit code 2.
    """
    where = prepared(cluster)
    from giaann_dask.planning.estimate import plan as plan_training
    from giaann_dask.planning.hardware import Hardware
    from giaann_dask.spec import Specification

    fields = read_fields(values)
    specification = Specification(**fields) if fields else None
    text.require_fit(specification or Specification())
    described = Hardware.read(hardware) if hardware is not None else _connected(where)
    with waiting("plan"):
        found = plan_training(inputs, hardware=described, specification=specification, text=text, **sample)
    commands = {} if hardware is None else _start_commands(described)
    commands["command"] = _train_command(context, connected=hardware is None)
    answer({**found.as_dict(), **commands}, [found, *figures(commands, *commands)])
    found.require_fit()


def _connected(where: ClusterOptions) -> Hardware:
    """Return the machines of the cluster that the options name."""
    from giaann_dask.api.cluster import connect
    from giaann_dask.planning.hardware import Hardware

    with connect(options=where) as client:
        return Hardware.of_cluster(client)


def _start_commands(hardware: Hardware) -> dict[str, str]:
    """Return the commands that start the scheduler, and the workers of a machine of each kind."""
    found = {"scheduler": f"dask scheduler --scheduler-file {_SCHEDULER_FILE}"}
    for number, kind in enumerate(hardware.machines, 1):
        role = "" if kind.role == "both" else f" --resources {kind.role}=1"
        threads = max(1, kind.cores // kind.workers)
        name = f"each of {kind.count} machines" + (f", kind {number}" if len(hardware.machines) > 1 else "")
        found[name] = (
            f"dask worker --scheduler-file {_SCHEDULER_FILE} --nworkers {kind.workers} --nthreads {threads} "
            f"--memory-limit {kind.worker_bytes}{role} --preload giaann_dask.worker_setup"
        )
    return found


def _train_command(context: click.Context, *, connected: bool) -> str:
    """Return the command that trains as planned, with the options that were given as far as it has them."""
    from giaann_dask.cli.commands import train

    taken = {each for parameter in train.params for each in parameter.opts} - {f"--{name}" for name in _OWN}
    given, _, order = context.command.make_parser(context).parse_args(list(context.meta[_RAW]))
    parts = ["giaann-dask", "train", *given.pop("inputs"), "--network", _free_name()]
    for parameter in dict.fromkeys(order):
        name = str(parameter.name)
        if not isinstance(parameter, click.Option) or parameter.opts[0] not in taken:
            continue
        values = given[name] if isinstance(given[name], list) else [given[name]]
        for value in values:
            if parameter.is_flag:
                parts.append(parameter.opts[0] if value else parameter.secondary_opts[0])
            else:
                parts += [parameter.opts[0], str(value)]
    if not connected:
        parts += ["--scheduler-file", _SCHEDULER_FILE]
    return shlex.join(parts)


def _free_name() -> str:
    """Return the name of a folder that does not exist here."""
    names = ("network" if number == 1 else f"network-{number}" for number in count(1))
    return next(name for name in names if not Path(name).exists())
