"""Follow golden inference files step by step, by the pushed state and by batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from giaann_dask.keys import pack_neuron, unpack_neuron
from giaann_dask.models.columns.batch import Advance, Prompt
from giaann_dask.models.columns.state.activation import NEVER, Candidates
from giaann_dask.models.columns.state.inference_options import InferenceOptions
from giaann_dask.models.columns.state.session import StepTrace
from giaann_dask.models.columns.v1.pull_batch import PullBatch
from giaann_dask.models.columns.v1.session import Session
from giaann_dask.models.generation_options import BatchOptions
from giaann_dask.rows.source import RunRows
from giaann_dask.runs.run import Run
from giaann_dask.spec import Specification
from support.conformance import (
    GoldenDictionary,
    golden_options,
    golden_specification,
    prepared,
    read_json,
    read_lines,
)
from support.generated import generate
from support.prompts import run_prompts

STOP_REASONS = {
    "no connections": "previous prediction has no outgoing connections",
    "no candidates": "beamSearchSelectSingleStepFeature: no candidates available",
}


EWT_FOLDERS = ["seed8_N200", "seed12_N200", "seed12_N1000"]


EWT_SAMPLE = [
    "infer_test50_biased_pred_noseq.jsonl.gz",
    "infer_test50_none_target_noseq_intfc.jsonl.gz",
    "infer_dev50_exact_pred_tiefirst.jsonl.gz",
]


def pairs(neurons: Any) -> list[list[int]]:
    """[[column, feature], ...] of neuron keys, as the golden files write them."""
    column, feature = unpack_neuron(neurons)
    return [list(pair) for pair in zip(column.tolist(), feature.tolist(), strict=True)]


def pair(neuron: int | None) -> list[int] | None:
    return None if neuron is None else pairs([neuron])[0]


class Follower:
    """Runs one golden file and compares each step with its record."""

    kind: type[Session] = Session

    def __init__(self, path: Path, run: Run) -> None:
        self.path = path
        self.options, self.ties_as_ours = golden_options(path)
        self.dictionary = GoldenDictionary.saved(path.parent)
        self.lines = list(read_lines(path))
        for number, line in enumerate(self.lines, start=1):
            self.dictionary.expand(line, number)
            assert line["c_after"] == len(self.dictionary.concepts)
            assert line["f_after"] == len(self.dictionary.features)
        self.session = self.kind(
            golden_specification(path.parent),
            RunRows([run], lambda neuron: 0),
            self.dictionary.flags(),
            options=self.options,
        )
        self.totals: Counter[str] = Counter()

    def follow(self) -> Counter[str]:
        """Compare all sentences; return the totals under the names of the info file."""
        for number, line in enumerate(self.lines, start=1):
            if line["status"] != "inferred":
                assert "steps" not in line or not line["steps"]
                continue
            self._follow_line(line, number)
        return self.totals

    def _follow_line(self, line: dict[str, Any], number: int) -> None:
        records = line["steps"]

        def choose(index: int, candidates: Candidates) -> int:
            """The recorded prediction, which must be one of our ties."""
            wanted = records[index]["pred"]
            ties = pairs(candidates.ties)
            assert wanted in ties, f"{self.path.name} {line['sent']} {index}: {wanted} not in {ties}"
            return int(np.searchsorted(candidates.neuron, pack_neuron(*wanted)))

        def compare(trace: StepTrace) -> None:
            where = f"{self.path.name}, sentence {line['sent']}, step {trace.result.index}"
            self._compare(line, trace, where)

        follow_record = self.options.feed == "prediction" and not self.ties_as_ours
        result = self.session.run_sequence(
            prepared(line, number), observer=compare, choose=choose if follow_record else None
        )
        assert len(result.steps) == len(records)
        stop = None
        if result.stop is not None:
            stop = {"w": result.steps[-1].index, "reason": STOP_REASONS[result.stop]}
        assert line["stop"] == stop

    def _compare(self, line: dict[str, Any], trace: StepTrace, where: str) -> None:
        step = trace.result
        record = line["steps"][step.index]
        assert record["w"] == step.index, where
        assert record["seed"] == step.seed, where
        assert [record["src_col"], record["src_feat"]] == pair(step.source), where
        assert record["src_act"] == step.activity, where
        assert record.get("mode") == step.mode, where
        assert record["rejected"] == (step.stop == "rejected"), where
        assert record.get("next") == pair(step.next), where
        assert record.get("stop_reason") == (STOP_REASONS[step.stop] if step.stop else None), where
        self._compare_candidates(record, trace, where)
        self._compare_state(record, trace, where)
        self._count(line, record, trace, where)

    def _compare_state(self, record: dict[str, Any], trace: StepTrace, where: str) -> None:
        state = trace.state
        assert state is not None, where
        assert record["act_entries"] == len(state), where
        assert record["act_pos"] == int((state.value > 0).sum()), where
        assert record["act_sum"] == pytest.approx(float(state.value.sum(dtype=np.float64)), abs=1e-5), where
        assert ("time_entries" in record) == (self.options.timing != "none"), where
        assert record.get("time_entries", 0) == int((state.time != NEVER).sum()), where
        assert record.get("time_sum", 0) == int(state.time[state.time != NEVER].sum()), where

    def _compare_candidates(self, record: dict[str, Any], trace: StepTrace, where: str) -> None:
        step, candidates = trace.result, trace.candidates
        if candidates is None:
            assert record["n_cand"] is None, where
            assert record["pred"] is None, where
            return
        assert record["n_cand"] == len(candidates) == step.candidates, where
        assert [item[:2] for item in record["cands"]] == pairs(candidates.neuron), where
        values = [item[2] for item in record["cands"]]
        assert values == pytest.approx(candidates.value.tolist(), abs=1e-5, rel=0), where
        assert record["max"] == pytest.approx(step.value, abs=1e-5, rel=0), where
        assert pair(step.predicted) in record["tie"], where
        assert record["tie"] == pairs(candidates.ties), where
        assert step.ties == len(record["tie"]), where
        ours = pair(int(candidates.neuron[candidates.best]))
        assert ours == record["tie"][0], where
        if self.options.feed == "prediction":
            assert pair(step.predicted) == record["pred"], where

    def _count(self, line: dict[str, Any], record: dict[str, Any], trace: StepTrace, where: str) -> None:
        step = trace.result
        self.totals["steps"] += 1
        self.totals["ties"] += step.ties > 1
        self.totals["rejected"] += step.stop == "rejected"
        if "match" not in record:
            self.totals["stopped"] += 1
            return
        self.totals["steps_done"] += 1
        if step.seed:
            assert record["match"], where
            return
        # Among ties the record's own choice decides whether it was a match.
        match = record["pred"] is not None and self.dictionary.matches(line, step.index, *record["pred"])
        assert record["match"] == match, where
        self.totals["pred_steps"] += 1
        self.totals["pred_match"] += match
        self.totals["no_pred"] += step.predicted is None


def follow(path: Path, run: Run, follower: type[Follower] = Follower) -> Counter[str]:
    """Follow one file and check its totals against its info file."""
    totals = follower(path, run).follow()
    info = read_json(path.with_name(path.name.replace(".jsonl.gz", ".info.json")))
    names = ("steps", "steps_done", "stopped", "ties", "rejected", "pred_steps", "pred_match")
    assert {name: totals[name] for name in names} == {name: info[name] for name in names}
    assert info["acc_pred"] == pytest.approx(totals["pred_match"] / max(totals["pred_steps"], 1))
    assert totals["steps"] > 0
    return totals


SYN_FOLDER = Path(__file__).resolve().parent.parent / "data" / "syn_seed8"


def split_rows(run: Run, regions: int) -> RunRows:
    """The rows of a run dealt to some regions."""
    runs = []
    for region in range(regions):
        chosen = np.flatnonzero(run.source % regions == region)
        parts = [slice(run.pointer[at], run.pointer[at + 1]) for at in chosen]
        counts = [part.stop - part.start for part in parts]
        none = Run.empty()
        target = np.concatenate([none.target, *(run.target[part] for part in parts)])
        strength = np.concatenate([none.strength, *(run.strength[part] for part in parts)])
        runs.append(Run(run.source[chosen], np.concatenate([[0], np.cumsum(counts)]).astype(int), target, strength))
    return RunRows(runs, lambda neuron: neuron % regions, lambda neurons: neurons % regions)


def alone(prompt: Prompt, specification: Specification, rows: RunRows, options: InferenceOptions) -> list[StepTrace]:
    """The steps of a prompt by itself, with whole rows pushed."""
    session, traces = Session(specification, rows, prompt.flags, options=options), list[StepTrace]()
    if prompt.tokens is None:
        session.run_sequence(prompt.sequence, observer=traces.append)
    else:
        generate(session, prompt.sequence, prompt.tokens, observer=traces.append)
    return traces


class BatchFollower(Follower):
    """Follows all sentences of a golden file at once, a few under way, with the regions split."""

    def __init__(self, path: Path, run: Run) -> None:
        super().__init__(path, run)
        rows, options = split_rows(run, 3), BatchOptions(slots=7, held_bytes=20_000, ahead=False)
        self.batch = PullBatch(self.session.specification, rows, options=self.options, batch=options)

    def follow(self) -> Any:
        """Compare all sentences; return the totals."""
        flags = self.dictionary.flags()
        chosen = [(line, n) for n, line in enumerate(self.lines, start=1) if line["status"] == "inferred"]
        prompts = (Prompt(sequence=prepared(line, n), flags=flags) for line, n in chosen)
        last: dict[int, int] = {}
        for advance in run_prompts(self.batch, prompts):
            line = chosen[advance.number][0]
            for trace in self._chosen(advance, line):
                self._compare(line, trace, f"{self.path.name}, sentence {line['sent']}, step {trace.result.index}")
                last[advance.number] = trace.result.index
                stopped = trace.result.next is None
            if advance.finished:
                result = advance.results[-1]
                reason = STOP_REASONS[result.stop] if stopped and result.stop else None
                assert line["stop"] == ({"w": result.index, "reason": reason} if reason else None)
        assert last == {number: len(line["steps"]) - 1 for number, (line, _) in enumerate(chosen)}
        return self.totals

    def _chosen(self, advance: Advance, line: dict[str, Any]) -> Iterator[StepTrace]:
        """The steps with the recorded prediction among ties, which is fed."""
        for trace in advance.traces:
            result = trace.result
            recorded = line["steps"][result.index]["pred"]
            if self.options.feed == "prediction" and not self.ties_as_ours and recorded is not None:
                neuron = int(pack_neuron(*recorded))
                assert trace.candidates is not None
                assert neuron in trace.candidates.ties
                self.batch.feed(advance.number, neuron)
                result = replace(result, predicted=neuron, next=neuron)
            yield StepTrace(result, trace.candidates)

    def _compare_state(self, record: dict[str, Any], trace: StepTrace, where: str) -> None:
        assert trace.state is None, where
