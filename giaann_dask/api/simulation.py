"""Simulate the training of a text on more workers than there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from giaann_dask.api.cluster import ClientLike, use_client
from giaann_dask.api.planning import SAMPLE, encode_sample
from giaann_dask.api.text_options import TextOptions
from giaann_dask.api.texts import Inputs, decide_text, read_inputs
from giaann_dask.errors import OptionError, require_option
from giaann_dask.keywords import names_keywords
from giaann_dask.planning.calibration import describe_cluster
from giaann_dask.planning.costs import TrainingConfiguration
from giaann_dask.planning.growth import measure_growth
from giaann_dask.planning.hardware import Hardware
from giaann_dask.planning.scaling import ScalingReport, simulate_scaling
from giaann_dask.planning.simulation import SimulationOptions
from giaann_dask.planning.workloads import SequenceSample
from giaann_dask.spec import Specification

SIZES = (10, 30, 100, 300, 1000, 3000, 10_000)
_ROUNDS = 8


@names_keywords
def simulate(
    inputs: Inputs,
    *,
    client: ClientLike | None = None,
    hardware: Hardware | str | Path | None = None,
    sizes: Sequence[int] = SIZES,
    configuration: TrainingConfiguration | None = None,
    options: SimulationOptions | None = None,
    columns: int | None = None,
    compare: bool = False,
    specification: Specification | None = None,
    text: TextOptions | None = None,
    sample_sequences: int = SAMPLE,
    storage_options: Mapping[str, object] | None = None,
    **keywords: Any,
) -> ScalingReport:
    """Simulate the training of a text on some numbers of workers, by discrete events.

    Rounds, selection, placement, owners of regions and compaction are composed as training does; only time is
    simulated. Nothing is stored.

    Parameters
    ----------
    inputs : str, Path, Files or iterable of texts
        As for `train`; the first sequences are the sample.
    client : Client, cluster or str, optional
        Where the sample is encoded; see `train`.
    hardware : Hardware, str or Path, optional
        Kinds of workers, links and rates, or the TOML file of them. By default those of the connected cluster.
    sizes : sequence of int
        Numbers of workers, ascending; the kinds keep their proportion.
    configuration : TrainingConfiguration, optional
        How training is divided (`giaann_dask.planning.costs`).
    options : SimulationOptions, optional
        What is simulated; 8 rounds by default.
    columns : int, optional
        Draw the columns of sequences from so many, by Zipf's law, instead of those of the sample.
    compare : bool
        Whether to simulate alternatives, too: selection, placement, accumulation, exchange.
    specification : Specification, optional
        Of the network, a profile with columns.
    text : TextOptions, optional
        How text is tagged.
    sample_sequences : int
        Sequences of the sample.
    storage_options : mapping of str to str or bool, optional
        How the object stores of URLs among these arguments are reached.
    **keywords
        Fields of `options`, `specification` and `text`, by their names.

    Returns
    -------
    ScalingReport

    Raises
    ------
    GiaannError
        If inputs, options or cluster have an error, or simpy is not installed (extra ``plan``).

    Examples
    --------
    >>> import giaann_dask as gd
    >>> from giaann_dask.data import sample_text
    >>> from giaann_dask.planning.costs import TrainingConfiguration
    >>> small = TrainingConfiguration(batch_sequences=16)
    >>> with gd.connect(workers=0) as client:
    ...     found = gd.simulate(sample_text(), client=client, sizes=(1, 4), rounds=2, configuration=small)
    >>> [point.at_once for point in found.points]
    [16, 64]
    """
    require_option(sample_sequences >= 1, "sample_sequences", sample_sequences, "1 or more")
    require_option(columns is None or columns >= 1, "columns", columns, "1 or more")
    described = Hardware.read(Path(hardware)) if isinstance(hardware, str | Path) else hardware
    how = options or SimulationOptions()
    with use_client(client) as used:
        workload = read_workload(inputs, used, specification, text, sample_sequences, storage_options)
        described = described or describe_cluster(used)
    drawn = workload if columns is None else workload.with_columns(columns, how.seed)
    how = how if how.rounds is not None else replace(how, rounds=_ROUNDS)
    return simulate_scaling(drawn, described, configuration or TrainingConfiguration(), how, sizes, compare=compare)


def read_workload(
    inputs: Inputs,
    client: Any,
    specification: Specification | None = None,
    text: TextOptions | None = None,
    sequences: int | None = None,
    storage_options: Mapping[str, object] | None = None,
) -> SequenceSample:
    """Return the first sequences of a text as what is simulated; all of them by default."""
    read, chosen = read_inputs(inputs, text, storage_options)
    wanted, lexicon = decide_text(client, None, read, specification, chosen)
    if not wanted.traits.columns:
        raise OptionError(f"profile is {wanted.profile!r}", "one with columns", "leave it out", names=("profile",))
    sample = encode_sample(client, read, (wanted, lexicon), chosen, sequences)
    return SequenceSample.of(sample.blocks, measure_growth(sample.blocks, wanted, sample.characters))
