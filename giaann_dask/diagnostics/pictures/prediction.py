"""Record a prediction step by step, and draw one of its steps.

A prompt is continued with the whole state of each step recorded; the columns and neurons that show it best are drawn.
`animation` draws all steps.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from giaann_dask.diagnostics.pictures.draw_options import DrawOptions
from giaann_dask.diagnostics.pictures.drawing import draw_graph, wrapped
from giaann_dask.diagnostics.pictures.layout import choose_graph
from giaann_dask.diagnostics.pictures.schemes import Activity, Colouring, colour_graph, theme_of
from giaann_dask.errors import OptionError
from giaann_dask.keys import pack_neuron, unpack_neuron, unpack_target
from giaann_dask.models.columns.connection_table import Neuron
from giaann_dask.models.columns.export import require_columns, table_of
from giaann_dask.models.columns.flags import changed_flags
from giaann_dask.models.columns.predictor import ColumnsPredictor, open_columns, word_and_column
from giaann_dask.models.columns.rules import fitting_rules, open_whole_session
from giaann_dask.models.columns.state.activation import Candidates, StateEntries
from giaann_dask.models.columns.state.session import StepTrace
from giaann_dask.models.generation_options import GenerationOptions
from giaann_dask.runs.run import Run
from giaann_dask.store.commits import CommitReader
from giaann_dask.text.detokenizer import Detokenizer
from giaann_dask.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    import networkx as nx
    from distributed import Client
    from matplotlib.figure import Figure

# Candidates whose columns are shown, at most; and that are named below a picture.
_CANDIDATES, _NAMED = 40, 5


class Word(NamedTuple):
    """A word of the text below a picture.

    Attributes
    ----------
    text : str
        The word as it is written, with the space before it where there is one.
    kind : str
        ``given`` by the prompt, ``predicted`` before, ``next`` (predicted in the step), ``given next``, ``waiting``
        (of the prompt, to come) or ``hidden``.
    """

    text: str
    kind: str


@dataclass(frozen=True, kw_only=True, eq=False)
class PredictionStep:
    """A step of a prediction.

    Attributes
    ----------
    source : Neuron
        The neuron that sends.
    following : Neuron or None
        The next one: of the prompt, or predicted; None where the prediction ends.
    predicted : bool
        Whether the step predicts, that is whether it lies beyond the prompt.
    candidates : tuple of (Neuron, float)
        The best candidates with their values, best first.
    candidate_count : int
        How many there are.
    neuron, value : ndarray
        Keys of all neurons with activation after the step, ascending, and that: of each segment its
        strongest branch, summed up; int64 and float32.
    stop : str or None
        Why the prediction ends here.
    """

    source: Neuron
    following: Neuron | None
    predicted: bool
    candidates: tuple[tuple[Neuron, float], ...]
    candidate_count: int
    neuron: npt.NDArray[np.int64] = field(repr=False)
    value: npt.NDArray[np.float32] = field(repr=False)
    stop: str | None = None

    def activation(self, neurons: Iterable[Neuron]) -> dict[Neuron, float]:
        """Return the activation of those of some neurons that have any."""
        wanted = list(neurons)
        if not wanted or not len(self.neuron):
            return {}
        keys = pack_neuron(*zip(*wanted, strict=True))
        at = np.minimum(np.searchsorted(self.neuron, keys), len(self.neuron) - 1)
        there = (self.neuron[at] == keys) & (self.value[at] > 0)
        return {wanted[i]: float(self.value[at[i]]) for i in np.flatnonzero(there).tolist()}


@dataclass(frozen=True, kw_only=True, eq=False)
class Prediction:
    """A prompt and its predictions, step by step.

    Attributes
    ----------
    opened : ColumnsPredictor
        The commit that answered.
    vocabulary : Vocabulary
        Its dictionaries, with the words of the prompt.
    given : tuple of str
        Words of the prompt as text has them, merged nouns with spaces.
    steps : tuple of PredictionStep
        From the prompt's second token on.
    """

    opened: ColumnsPredictor
    vocabulary: Vocabulary
    given: tuple[str, ...]
    steps: tuple[PredictionStep, ...]

    def text(self, at: int, *, whole: bool = False) -> list[Word]:
        """Return the words up to a step and its prediction; of the whole text the others are ``hidden``."""
        shown = self._text(at)
        last = self._text(len(self.steps) - 1) if whole else shown
        return [*shown, *(Word(word.text, "hidden") for word in last[len(shown) :])]

    def _text(self, at: int) -> list[Word]:
        writer = Detokenizer(self.vocabulary.delimiter_since is not None, spaced=True)
        words = [Word(writer.write(word), "given") for word in self.given]
        for number, step in enumerate(self.steps[: at + 1]):
            if step.predicted and step.following is not None:
                kind = "next" if number == at else "predicted"
                words.append(Word(writer.write(*self.name(step.following)), kind))
        if not self.steps[at].predicted:
            return [*words[: at + 1], Word(words[at + 1].text, "given next"), *_waiting(words[at + 2 :])]
        return words

    def name(self, neuron: Neuron) -> tuple[str, str]:
        """Return the word of a neuron and the concept of its column."""
        return word_and_column(int(pack_neuron(*neuron)), self.vocabulary)

    def told(self, at: int) -> str:
        """Return a description of a step."""
        step = self.steps[at]
        word, column = self.name(step.source)
        said = f"Step {at + 1} of {len(self.steps)}. The neuron {word} [{column}] sends. "
        if not step.predicted and step.following is not None:
            return said + f"The prompt goes on with {self.name(step.following)[0]}."
        if step.candidates:
            best = ", ".join(f"{self.name(n)[0]} [{self.name(n)[1]}] {v:.4g}" for n, v in step.candidates[:_NAMED])
            said += f"{step.candidate_count:,} candidate{'s' if step.candidate_count > 1 else ''}: {best}. "
        if step.stop is not None:
            return said + f"The prediction ends: {step.stop}."
        return said


def predict(
    reader: CommitReader, prompt: str, options: GenerationOptions | None = None, client: Client | None = None
) -> Prediction:
    """Follow a prompt with the whole state of every step.

    Parameters
    ----------
    reader : CommitReader
        Of profile ``v1`` or ``v2``.
    prompt : str
        Some words, with at least one noun.
    options : GenerationOptions, optional
        Tokens to predict, rules of inference and tagger.
    client : Client, optional
        Of a cluster whose workers hold the network; without one it is read into this process.

    Raises
    ------
    PromptError
        If the prompt cannot be divided into concept columns.
    OptionError
        If the network has no columns, or the rules do not fit it.
    """
    require_columns(reader)
    options = options or GenerationOptions(max_tokens=10)
    rules = fitting_rules(reader.manifest().specification, options.inference)
    # Drawn with the strengths of connections, which rows have where reasons are asked for.
    opened = open_columns(reader, client=client, options=replace(options, reasons=max(options.reasons, 1)))
    prepared, vocabulary = opened.prepare(prompt, options.tagger)
    flags = changed_flags(opened.flags_for(rules), prepared.change)
    session = open_whole_session(opened.specification, opened.rows, flags, options=rules)
    # In the first step nothing sends.
    steps = tuple(_steps(session.stream(prepared.sequence, options.max_tokens)))[1:]
    if not steps:
        raise OptionError(
            "a prompt of one word that nothing follows", "words with a continuation", "give another prompt"
        )
    return Prediction(opened=opened, vocabulary=vocabulary, given=prepared.words, steps=steps)


def draw_step(prediction: Prediction, step: int = 1, options: DrawOptions | None = None) -> Figure:
    """Draw the activation of neurons after a step beyond the prompt.

    Parameters
    ----------
    prediction : Prediction
        From `predict`.
    step : int
        Number of the predicted token, from 1.
    options : DrawOptions, optional
        How much is drawn, and how large; named concepts come first.

    Raises
    ------
    OptionError
        If there is no such step.
    """
    options = options or DrawOptions(colour="activation")
    at = find_step(prediction, step)
    return draw_state(prediction, at, graph_of(prediction, [at], options), options)


def find_step(prediction: Prediction, step: int) -> int:
    """Return the index of the step that predicts the token of a number, counted from 1; an OptionError without one."""
    beyond = [at for at, each in enumerate(prediction.steps) if each.predicted]
    if not 1 <= step <= len(beyond):
        why = prediction.steps[-1].stop or "no more tokens were asked for"
        raise OptionError(
            f"step {step} of a prediction",
            f"1 to {len(beyond)} ({why})",
            "set step to one of them",
            names=("step",),
        )
    return beyond[step - 1]


def graph_of(prediction: Prediction, shown: Sequence[int], options: DrawOptions) -> nx.DiGraph:
    """Return the columns, neurons and connections that show some steps best."""
    steps = [prediction.steps[at] for at in shown]
    columns = _choose_columns(prediction, steps, prediction.steps[: shown[-1]], options)
    neurons = _choose_neurons(steps, columns, options.max_features)
    keys = np.sort(pack_neuron(*zip(*neurons, strict=True)))
    rows = {int(key): prediction.opened.rows.row(int(key)) for key in keys}
    found = [(key, row) for key, row in rows.items() if row is not None and len(row.target)]
    pointer = np.cumsum([0, *(len(row.target) for _, row in found)])
    empty = Run.empty()
    run = Run(
        np.array([key for key, _ in found], np.int64),
        pointer,
        np.concatenate([empty.target, *(row.target for _, row in found)]),
        np.concatenate([empty.strength, *(row.strength for _, row in found)]),
    )
    table = table_of(run, prediction.opened.specification, prediction.vocabulary)
    return choose_graph(table.select_columns(columns), columns, options, neurons)


def draw_state(
    prediction: Prediction,
    at: int,
    graph: nx.DiGraph,
    options: DrawOptions,
    *,
    largest: float = 0.0,
    caption_lines: int = 0,
) -> Figure:
    """Draw the state after a step on a graph that shows it.

    Parameters
    ----------
    prediction : Prediction
        From `predict`.
    at : int
        Index of the step.
    graph : networkx.DiGraph
        From `graph_of`.
    options : DrawOptions
        How large.
    largest : float
        Activation at the upper end of the scale; 0 for the largest one of the step.
    caption_lines : int
        Fill up what is told of the step to so many lines, and the text to all of it; 0 leaves both as they are.
    """
    told = wrapped(prediction.told(at), options.width_inches)
    told += [""] * (caption_lines - len(told))
    colouring = colour_state(prediction, at, graph, options, largest)
    return draw_graph(graph, colouring, options, told, prediction.text(at, whole=caption_lines > 0))


def colour_state(
    prediction: Prediction, at: int, graph: nx.DiGraph, options: DrawOptions, largest: float = 0.0
) -> Colouring:
    """Return the look of a graph that shows the state after a step; the parameters are those of `draw_state`."""
    step = prediction.steps[at]
    activity = Activity(
        value=step.activation(graph),
        source=step.source,
        candidates=[neuron for neuron, _ in step.candidates],
        winner=step.following if step.predicted else None,
        largest=largest,
    )
    return colour_graph(graph, theme_of(options.dark), "activation", activity=activity)


def _steps(traces: Iterator[StepTrace]) -> Iterator[PredictionStep]:
    """Return the steps of a session as pictures show them."""
    for trace in traces:
        result = trace.result
        neuron, value = activation_of(trace.state)
        yield PredictionStep(
            source=_neuron(result.source),
            following=None if result.next is None else _neuron(result.next),
            predicted=not result.seed,
            candidates=_ranked(trace.candidates),
            candidate_count=result.candidates,
            neuron=neuron,
            value=value,
            stop=result.end,
        )


def _ranked(candidates: Candidates | None) -> tuple[tuple[Neuron, float], ...]:
    if candidates is None:
        return ()
    neurons, values = candidates.ranked(_CANDIDATES)
    return tuple((_neuron(n), v) for n, v in zip(neurons.tolist(), values.tolist(), strict=True))


def activation_of(state: StateEntries | None) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Return every neuron of a state, and of each segment its strongest branch, summed up.

    Returns
    -------
    neuron : ndarray of int64
        Keys, ascending.
    value : ndarray of float32
        Activation of each.
    """
    if state is None or not len(state):
        return np.zeros(0, np.int64), np.zeros(0, np.float32)
    segment, neuron, _ = unpack_target(state.key)
    order = np.lexsort((segment, neuron))
    segment, neuron, value = segment[order], neuron[order], state.value[order]
    begins = np.flatnonzero(np.concatenate([[True], (neuron[1:] != neuron[:-1]) | (segment[1:] != segment[:-1])]))
    strongest, owner = np.maximum.reduceat(value, begins), neuron[begins]
    first = np.flatnonzero(np.concatenate([[True], owner[1:] != owner[:-1]]))
    return owner[first], np.add.reduceat(strongest, first)


def _choose_columns(
    prediction: Prediction, steps: Sequence[PredictionStep], before: Sequence[PredictionStep], options: DrawOptions
) -> list[int]:
    """Return the columns that show steps best, in the order of their first step; named ones first."""
    table = table_of(Run.empty(), prediction.opened.specification, prediction.vocabulary)
    named = table.find_columns(options.concepts)
    chosen = [step.source[0] for step in steps]
    chosen += [step.following[0] for step in steps if step.following is not None]
    candidates = Counter(neuron[0] for step in steps for neuron, _ in step.candidates[:_NAMED])
    told = [step.source[0] for step in before]
    wanted = dict.fromkeys([*named, *chosen, *(column for column, _ in candidates.most_common()), *reversed(told)])
    kept = set(list(wanted)[: options.max_columns]) - set(named)
    return [*named, *sorted(kept, key=[*told, *chosen, *wanted].index)]


def _choose_neurons(steps: Sequence[PredictionStep], columns: Sequence[int], features: int) -> set[Neuron]:
    """Return the neurons of some columns that show steps best."""
    weight: dict[Neuron, float] = defaultdict(float)
    for step in steps:
        # What sends and what is chosen comes first, then candidates, then what is active.
        weight[step.source] += 1000
        if step.following is not None:
            weight[step.following] += 1000
        for place, (neuron, _) in enumerate(step.candidates):
            weight[neuron] += 10 / (1 + place)
        largest = float(step.value.max(initial=0.0)) or 1.0
        column, feature = unpack_neuron(step.neuron)
        shown = np.isin(column, columns) & (step.value > 0)
        active = (column[shown].tolist(), feature[shown].tolist(), step.value[shown].tolist())
        for its_column, its_feature, value in zip(*active, strict=True):
            weight[its_column, its_feature] += value / largest
    kept = {(column, 0) for column in columns}
    for place in columns:
        its = [neuron for neuron in weight if neuron[0] == place and neuron[1]]
        kept.update(sorted(its, key=lambda neuron: (-weight[neuron], neuron))[:features])
    return kept


def _waiting(words: Iterable[Word]) -> list[Word]:
    return [Word(word.text, "waiting") for word in words]


def _neuron(key: int) -> Neuron:
    column, feature = unpack_neuron(key)
    return int(column), int(feature)
