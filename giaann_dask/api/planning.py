"""Plan a training from a sample of its text, measure the connected cluster for it, and simulate it on more workers."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from giaann_dask.api.cluster import ClientLike, use_client
from giaann_dask.api.text_options import TextOptions
from giaann_dask.api.texts import Inputs, decide_text, read_inputs, sources_of
from giaann_dask.api.training import train
from giaann_dask.cluster import result, results, roles_of, task_key
from giaann_dask.cluster.memory_budget import PROCESS_BYTES
from giaann_dask.cluster.stages import ProcessorTimes, processor_times
from giaann_dask.cluster.waiting import ask_workers
from giaann_dask.data import sample_text
from giaann_dask.encoding.sources import estimate_characters
from giaann_dask.encoding.stream import EncodingStream, StreamOptions
from giaann_dask.errors import GiaannError, OptionError, StoreUnsharedError, require_option
from giaann_dask.events import Committed, Event, MemoryMeasured, RoundIntegrated
from giaann_dask.keywords import names_keywords
from giaann_dask.planning.calibration import (
    calibrate_cluster,
    describe_cluster,
    forget_peak,
    keep_rates,
    measure_requests,
    measure_steps,
    peak_bytes,
    with_rates,
)
from giaann_dask.planning.costs import Costs, TrainingConfiguration
from giaann_dask.planning.growth import Growth, measure_growth
from giaann_dask.planning.hardware import Hardware
from giaann_dask.planning.measured_trainings import CalibratedCluster, MeasuredTraining, rates_of
from giaann_dask.planning.scaling import ScalingReport, simulate_scaling
from giaann_dask.planning.search import PlanTarget, TrainingPlan, search
from giaann_dask.planning.simulation import SimulationOptions
from giaann_dask.planning.workloads import SequenceSample
from giaann_dask.spec import Specification
from giaann_dask.text.blocks import CANDIDATE
from giaann_dask.text.inputs import require_rereadable
from giaann_dask.text.memory_inputs import Source
from giaann_dask.text.reading import read_parts
from giaann_dask.text.segmentation import EncodedBlock
from giaann_dask.text.vocabulary import Vocabulary
from giaann_dask.training.target import open_store
from giaann_dask.training.training_options import TrainingOptions

if TYPE_CHECKING:
    from distributed import Client

    from giaann_dask.api.network import Network
    from giaann_dask.text.ever_pos import EverPos
    from giaann_dask.text.tokenizer import SubwordTokenizer

_LOG = logging.getLogger(__name__)
SAMPLE = 10_000
# Sequences of the trainings of a calibration: one loads what all need, one tells what workers take with next to no data
# beside blocks of text, one has many rounds, and two have their stages measured. Between, a text of a few sentences is
# trained so many times, which is little more than a start and a commit.
_TRAINED, _SMALL_TIMES = (500, 50, 2000, 3000, 8000), 5
# They make no commit but the last.
_UNDIVIDED = TrainingOptions(commit_seconds=3600.0)
_DIVIDED = replace(_UNDIVIDED, batch_sequences=128, block_characters=32_768)
# Prompts whose steps are measured, and their words.
_PROMPTS, _PROMPT_WORDS = 40, 5
# Numbers of workers, and rounds, of a simulation.
SIZES = (10, 30, 100, 300, 1000, 3000, 10_000)
_ROUNDS = 8


class TextSample(NamedTuple):
    """Encoded beginning of a text.

    Attributes
    ----------
    specification : Specification
        Of the network.
    blocks : list of EncodedBlock
        Its sequences.
    characters : int
        Of its text.
    whole : bool
        Whether it is all of the text.
    driver_per_s : float
        Sequences that the driver adds to the dictionaries in a second.
    """

    specification: Specification
    blocks: list[EncodedBlock]
    characters: int
    whole: bool
    driver_per_s: float

    @property
    def trained(self) -> int:
        """Sequences that are trained."""
        return sum(int((block.status == CANDIDATE).sum()) for block in self.blocks)


@names_keywords
def plan(
    inputs: Inputs,
    *,
    client: ClientLike | None = None,
    hardware: Hardware | str | Path | None = None,
    target: PlanTarget | None = None,
    specification: Specification | None = None,
    text: TextOptions | None = None,
    sample_sequences: int = SAMPLE,
    calibrate: bool = False,
    command: str = "giaann-dask train INPUT... --network NETWORK",
    storage_options: Mapping[str, object] | None = None,
    **keywords: Any,
) -> TrainingPlan:
    """Plan the training of a text, or of a network of some size, from a sample of the text.

    The sample is encoded on the cluster and counted exactly in this process; nothing is stored.

    Parameters
    ----------
    inputs : str, Path, Files or iterable of texts
        As for `train`.
    client : Client, cluster or str, optional
        Where the sample is encoded, and what is calibrated; see `train`.
    hardware : Hardware, str or Path, optional
        Where the training is to run: a description, or the TOML file of one. By default the connected cluster.
    target : PlanTarget, optional
        What is to be trained, all of the text by default.
    specification : Specification, optional
        Of the network.
    text : TextOptions, optional
        How text is tagged.
    sample_sequences : int
        Sequences of the sample, the first ones.
    calibrate : bool
        Whether to measure the connected cluster first, which takes a minute, and keep what was found in the user's
        cache. Without, rates are those that were measured before, or built in.
    command : str
        Beginning of the command that the plan shows.
    storage_options : mapping of str to str or bool, optional
        How the object stores of URLs among these arguments are reached.
    **keywords
        Fields of `target`, `specification` and `text`, and of the options within these, by their names.

    Returns
    -------
    TrainingPlan
        Whether it fits is said by `TrainingPlan.require_fit`.

    Raises
    ------
    GiaannError
        If inputs, options or cluster have an error, or the sample has too little to train.

    Examples
    --------
    >>> import giaann_dask as gd
    >>> from giaann_dask.data import sample_text
    >>> with gd.connect(workers=0) as client:
    ...     found = gd.plan(sample_text(), columns=1_000_000, column_bytes=1 << 30)
    >>> found.estimate.fits
    False
    """
    require_option(sample_sequences >= 1, "sample_sequences", sample_sequences, "1 or more")
    read, chosen = read_inputs(inputs, text, storage_options)
    described = Hardware.read(Path(hardware)) if isinstance(hardware, str | Path) else hardware
    wanted = target or PlanTarget()
    with use_client(client) as used:
        decided = decide_text(used, None, read, specification, chosen)
        sample = encode_sample(used, read, decided, chosen, sample_sequences)
        found = describe_cluster(used)
        if calibrate:
            # The first time, workers load what they need for it.
            sample = encode_sample(used, read, decided, chosen, sample_sequences)
        growth = measure_growth(sample.blocks, sample.specification, sample.characters)
        if calibrate:
            found = _calibrate(used, sample, growth, found, read, chosen)
    # Without a link between hosts, those of the description count.
    described = described or found
    characters = None if sample.whole else estimate_characters(read, chosen.reading)
    trained = growth.trained * max((characters or 0) / sample.characters, 1.0)
    costs = wanted.costs(growth, described, trained)
    return search(costs, columns=wanted.columns, command=command)


def choose_options(
    client: Client,
    inputs: Inputs,
    network: Path,
    specification: Specification | None,
    text: TextOptions,
    options: TrainingOptions,
) -> tuple[Specification | None, TrainingOptions]:
    """Return specification and options with those of a plan for the connected cluster, as far as they are defaults.

    An existing network keeps its regions.

    Raises
    ------
    OptionError
        If an input can be read once, so that nothing would be left to train.
    HardwareTooSmallError
        If no configuration fits.
    """
    require_rereadable(read_inputs(inputs, text)[0], "training with plan")
    target = PlanTarget(sequences=options.max_sequences)
    found = plan(inputs, client=client, specification=specification, text=text, target=target)
    found.require_fit()
    if open_store(network) is None:
        specification = found.specification(specification or Specification())
    return specification, found.options(options)


def encode_sample(
    client: Client,
    inputs: Sequence[Source],
    decided: tuple[Specification, EverPos | SubwordTokenizer],
    text: TextOptions,
    sequences: int | None,
) -> TextSample:
    """Encode the beginning of a text on the cluster.

    Parameters
    ----------
    client : Client
        Of the cluster.
    inputs : sequence of str or MemoryInput
        The text.
    decided : tuple
        Specification and lexicon, from `giaann_dask.api.texts.decide_text`.
    text : TextOptions
        How it is tagged.
    sequences : int or None
        Sequences after which no further block is read; None reads all.
    """
    wanted, lexicon = decided
    vocabulary = _TimedVocabulary()
    stream = EncodingStream(client, vocabulary, sources_of(wanted, text, lexicon), StreamOptions(words=False))
    streamed, counted, whole = [], 0, True
    # Whole blocks, of which it is known how long their text is.
    for block in stream.blocks(inputs):
        if sequences is not None and counted >= sequences:
            whole = False
            break
        streamed.append(block)
        counted += block.mapping.sequences
    blocks: list[EncodedBlock] = results([block.encoded for block in streamed])
    return TextSample(
        specification=wanted,
        blocks=blocks,
        characters=sum(block.characters for block in streamed),
        whole=whole,
        driver_per_s=counted / vocabulary.seconds if vocabulary.seconds else 0.0,
    )


class _TimedVocabulary(Vocabulary):
    """Dictionaries that measure how long they take to grow."""

    seconds = 0.0

    def extend(self, *arguments: Any, **keywords: Any) -> Any:
        """Extend the dictionaries by those of a block."""
        began = time.perf_counter()
        try:
            return super().extend(*arguments, **keywords)
        finally:
            self.seconds += time.perf_counter() - began


def _calibrate(
    client: Client,
    sample: TextSample,
    growth: Growth,
    hardware: Hardware,
    inputs: Sequence[Source],
    text: TextOptions,
) -> Hardware:
    """Measure a cluster, keep its rates, and return it with these."""
    trained: list[MeasuredTraining] = []
    steps: dict[str, float] = {}
    with TemporaryDirectory() as folder:
        try:
            # Before kernels are measured, which leave memory with a worker.
            trained, steps = _measure_trainings(client, Path(folder), inputs, sample, text)
        except StoreUnsharedError:
            _LOG.warning("workers on other machines see no temporary folder: rates of text and store are built in")
    rates, links = calibrate_cluster(client, sample.blocks, sample.specification, sample.characters)
    if sample.driver_per_s:
        rates["driver_per_s"] = sample.driver_per_s
    if trained:
        *small, one, divided, _, middle, last = trained
        linked = with_rates(hardware, rates, links)
        costs = Costs(growth=growth, hardware=linked, sequences=last.trained)
        cluster = CalibratedCluster(
            workers=sum(kind.count for kind in hardware.workers),
            block=TrainingOptions().block_characters * sample.trained / sample.characters,
            cores=hardware.only_host_cores,
            sending_s=costs.sending_s(TrainingConfiguration()),
        )
        rates |= rates_of(small, (middle, last), divided, linked.rates, cluster)
        rates["process_bytes"] = one.peak_bytes or PROCESS_BYTES
    rates |= steps
    measured = with_rates(hardware, rates, links)
    keep_rates(measured.rates)
    return measured


def _measure_trainings(
    client: Client, folder: Path, inputs: Sequence[Source], sample: TextSample, text: TextOptions
) -> tuple[list[MeasuredTraining], dict[str, float]]:
    """Measure small trainings, one for the memory of workers, one of many rounds, large ones, and steps of prompts."""
    commits: list[Committed] = []
    integrated: list[RoundIntegrated] = []
    times: list[ProcessorTimes] = []
    marks: list[float] = []
    measured: list[MeasuredTraining] = []
    paths = (folder / str(number) for number in itertools.count())

    def observe(event: Event) -> None:
        if isinstance(event, MemoryMeasured) and not commits:
            # A round was integrated.
            times[1:], marks[1:] = [processor_times(client)], [time.perf_counter()]
        elif isinstance(event, Committed):
            commits.append(event)
        elif isinstance(event, RoundIntegrated):
            integrated.append(event)

    def measure(texts: Inputs, sequences: int | None, options: TrainingOptions = _UNDIVIDED) -> Network:
        ask_workers(client, forget_peak)
        commits.clear()
        integrated.clear()
        times[:], marks[:] = [processor_times(client)], [time.perf_counter()]
        network = train(
            texts,
            next(paths),
            client=client,
            specification=sample.specification,
            text=text,
            options=replace(options, max_sequences=sequences),
            observer=observe,
            progress=False,
        )
        began, middle, ended = *times, processor_times(client)
        found = ask_workers(client, peak_bytes).values()
        report = network.training_report
        measured.append(
            MeasuredTraining(
                seconds=report.seconds,
                commit_s=commits[-1].seconds,
                rounds_s=marks[1] - marks[0],
                rounds=middle.since(began),
                ending=ended.since(middle),
                integrated=len(integrated),
                tasks=report.tasks,
                regions=report.regions,
                trained=report.trained,
                increment_bytes=report.increment_bytes,
                written_bytes=commits[-1].nbytes,
                peak_bytes=max((each for each in found if isinstance(each, int)), default=0),
            )
        )
        return network

    loading, few, several, medium, many = _TRAINED
    measure(inputs, loading)
    for _ in range(_SMALL_TIMES):
        measure(sample_text(), None)
    measure(inputs, few)
    measure(inputs, several, _DIVIDED)
    # The first one of its size takes up to twice the work of the next ones.
    measure(inputs, many)
    measure(inputs, medium)
    network = measure(inputs, many)
    return measured[1:], _measure_steps(client, network, _first_prompts(inputs, text))


def _first_prompts(inputs: Sequence[Source], text: TextOptions) -> list[str]:
    """Return the first words of some sentences of a text; none of an encoded corpus."""
    with suppress(GiaannError):
        passages = next(read_parts(inputs, text.reading)).passages
        sentences = [each.split() for each in " ".join(passages).split(". ")]
        return [" ".join(words[:_PROMPT_WORDS]) for words in sentences if len(words) > _PROMPT_WORDS][:_PROMPTS]
    return []


def _measure_steps(client: Client, network: Network, prompts: Sequence[str]) -> dict[str, float]:
    """Return the seconds of a step of prompts, and of a request for its rows, as far as they are known."""
    worker, key = roles_of(client).compute[0], task_key("measure_steps", network.commit, time.time())
    place = str(network.path), network.commit
    step_s: float = result(client.submit(measure_steps, *place, prompts, key=key, workers=[worker]))
    requested_s = measure_requests(client, *place, prompts)
    found = {"step_s": step_s, "row_s": requested_s - step_s}
    return {name: seconds for name, seconds in found.items() if seconds > 0}


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
        Draw the columns of sequences from this number, by Zipf's law, instead of those of the sample.
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
