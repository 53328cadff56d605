"""Choose the rules of inference, the session and the batch of a network of columns by its profile.

Does not cover: the rules themselves (`giaann_dask.models.columns.state.inference_options`,
`giaann_dask.models.columns.state.inference_options`).
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TypeAlias

from giaann_dask.device import DeviceName, require_kernels, select_device, torch
from giaann_dask.errors import OptionError
from giaann_dask.models.columns.batch import Batch, SessionBatch
from giaann_dask.models.columns.beam import BeamSession, BeamV2Session
from giaann_dask.models.columns.state.inference_options import InferenceOptions, V2Options, V2Settings
from giaann_dask.models.columns.state.session import FlagTable
from giaann_dask.models.columns.v1 import pull_batch
from giaann_dask.models.columns.v1.pull_batch import PullBatch
from giaann_dask.models.columns.v1.session import Session
from giaann_dask.models.columns.v2.dynamics import SegmentLayout
from giaann_dask.models.columns.v2.session import V2Session
from giaann_dask.models.generation_options import (
    BatchOptions,
    BeamOptions,
    GenerationOptions,
    PredictionRules,
    SamplingOptions,
    StateOptions,
)
from giaann_dask.rows.source import RowSource
from giaann_dask.spec import Specification
from giaann_dask.text.attachments import check_kinds

InferenceRules: TypeAlias = InferenceOptions | V2Options


@lru_cache(maxsize=64)
def fitting_rules(specification: Specification, asked: PredictionRules) -> InferenceRules:
    """Return the rules of inference by which a network predicts; found once for all stages of a prompt.

    Parameters
    ----------
    specification : Specification
        Of the network.
    asked : PredictionRules
        The requested rules: `InferenceOptions` for profile ``v1``, `V2Settings` or `V2Options` for profile ``v2``, or
        none but what is fed (`PredictionRules`, or `InferenceOptions` with its defaults), which stand for the
        defaults of the profile.

    Raises
    ------
    OptionError
        If the network has no columns (profile ``best``), or if rules of another profile, of dynamics that it
        was not trained for, or auxiliary neurons of other tokens were chosen.
    """
    if not specification.traits.columns:
        raise OptionError(
            f"columns and features to predict in a network of profile {specification.profile}",
            "profile v1 or v2",
            "measure it with evaluate (Network.score in Python)",
        )
    if specification.ruled_by == "v1":
        if isinstance(asked, InferenceOptions):
            return asked
        if not asked.chosen:
            return InferenceOptions(feed=asked.feed, sources=asked.sources)
        raise OptionError(
            "settings of profile v2 for a network of profile v1",
            "its timing",
            "leave settings out",
            names=("settings", "timing"),
        )
    if asked.chosen and isinstance(asked, InferenceOptions):
        raise OptionError(
            "timing, activations or sequential of profile v1 for a network of profile v2",
            "its settings",
            "choose settings train or test",
            names=("timing", "activations", "sequential", "settings"),
        )
    if not asked.chosen:
        asked = V2Settings(feed=asked.feed, sources=asked.sources)
    layout = SegmentLayout.of(specification)
    if not isinstance(asked, V2Settings | V2Options):
        raise OptionError(f"{type(asked).__name__} for a network of profile v2", "V2Settings", "choose such rules")
    rules = asked.options(lif=layout.soma) if isinstance(asked, V2Settings) else asked
    layout.require_soma(rules.lif)
    if rules.auxiliary:
        check_kinds(rules.auxiliary, specification.tokens == "subwords")
    return rules


def require_fit(specification: Specification, options: GenerationOptions) -> InferenceRules:
    """Return the rules by which a network of columns continues prompts with these options.

    Raises
    ------
    OptionError
        If it cannot.
    """
    if options.model_options:
        received = f"model_options for predictions of a network of profile {specification.profile}"
        raise OptionError(received, "a model of words of another package", "leave model_options out")
    for name in ("temperature", "block_ngrams"):
        if getattr(options.sampling, name) != getattr(SamplingOptions, name):
            found = f"{name} {getattr(options.sampling, name)} for a network of profile {specification.profile}"
            raise OptionError(found, "profile contexts, which has probabilities", "leave it out", names=(name,))
    return fitting_rules(specification, options.inference)


def prompt_device(name: DeviceName) -> torch.device | None:
    """Return the device of the name that steps are computed on, None for the CPU.

    ``auto`` stands for the CPU: compiled steps of a few prompts take less time than a launch and its transfers.

    Raises
    ------
    OptionError
        If there is no such device here, or numba cannot compile for it.
    """
    device = select_device("cpu" if name == "auto" else name)
    if device is not None:
        require_kernels()
    return device


def require_cpu(device: torch.device | None) -> None:
    """Raise an `OptionError` for a device that sessions of profile ``v2`` do not compute on."""
    if device is not None:
        raise OptionError(f"device is {device}", "cpu for networks of profile v2", "leave it out", names=("device",))


def open_whole_session(
    specification: Specification,
    rows: RowSource,
    flags: FlagTable,
    *,
    options: InferenceRules,
    state: StateOptions | None = None,
) -> Session | V2Session:
    """Return the session whose traces have the whole state; the parameters are those of `Session`.

    A state that exceeds `state` is refused.
    """
    limit = None if state is None else state.state_bytes
    if isinstance(options, V2Options):
        return V2Session(specification, rows, flags, options=options, state_bytes=limit)
    return Session(specification, rows, flags, options=options, state_bytes=limit)


def compile_steps(specification: Specification) -> None:
    """Compile the steps of profile ``v1``; those of others are compiled when they are called."""
    if specification.ruled_by == "v1":
        pull_batch.compile_steps(specification)


def open_batch(
    specification: Specification,
    rows: RowSource,
    *,
    options: InferenceRules,
    beam: BeamOptions | None = None,
    batch: BatchOptions | None = None,
    device: torch.device | None = None,
) -> Batch:
    """Return an empty batch that follows some rules; the parameters are those of `PullBatch`.

    Steps are compiled for the CPU; on a device one kernel does those of all sequences of profile ``v1``. With a beam
    that searches, each sequence looks ahead in a session of its own.
    """
    if beam is not None and beam.searches:
        kind = BeamV2Session if isinstance(options, V2Options) else BeamSession
        return SessionBatch(partial(kind, specification, rows, beam=beam, options=options), rows, batch=batch)
    if not isinstance(options, V2Options):
        return PullBatch(specification, rows, options=options, batch=batch, device=device)
    require_cpu(device)
    limit = (batch or BatchOptions()).state.state_bytes
    return SessionBatch(partial(V2Session, specification, rows, options=options, state_bytes=limit), rows, batch=batch)
