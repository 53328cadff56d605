"""Networks trained and asked under settings that may change no result; run as a script, it prints their digests."""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from distributed import Client

import giaann_dask as gd
from giaann_dask import EvaluationOptions, GenerationOptions
from giaann_dask.cluster import ClusterOptions
from giaann_dask.data import sample_text
from giaann_dask.spec import Specification
from giaann_dask.text.read_options import ReadOptions
from giaann_dask.training.training_options import SelectionOptions
from support.damaged_stores import PROMPT, exported, figures

# Of the sample text.
LINES = 40


def run(profiles: list[str], settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the digest of every export and answer, by its profile and name."""
    options = ClusterOptions(workers=settings.get("workers", 0), threads=settings.get("threads", 1))
    with tempfile.TemporaryDirectory() as folder, gd.connect(options=options) as client:
        return {
            f"{profile} {name}": hashlib.sha256(value).hexdigest()
            for profile in profiles
            for name, value in results(Path(folder) / profile, profile, client, settings)
        }


def results(folder: Path, profile: str, client: Client, settings: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    folder.mkdir()
    text = folder / "text.txt"
    text.write_text("\n".join(sample_text().read_text(encoding="utf-8").splitlines()[:LINES]), encoding="utf-8")
    fields = {"profile": profile, **settings.get("specification", {})}
    if profile == "contexts":
        # Which has one placement alone.
        fields.pop("placement", None)
    network = trained(folder, text, gd.Specification(**fields), client, settings)
    yield from zip(("connections", "dictionaries", "neurons"), exported(network, folder), strict=True)
    said = network.generate(PROMPT, client=client, options=GenerationOptions(max_tokens=6)).as_dict()
    yield "generate", as_bytes({**said, "commit": None})
    if profile == "contexts":
        report = network.score(text, client=client).as_dict()
    else:
        report = network.evaluate(text, client=client, options=EvaluationOptions(max_sequences=10)).as_dict()
    yield "evaluate", as_bytes({**figures(report), "commit": None})


def as_bytes(values: dict[str, Any]) -> bytes:
    return json.dumps(values, sort_keys=True).encode()


def trained(
    folder: Path, text: Path, specification: Specification, client: Client, settings: Mapping[str, Any]
) -> gd.Network:
    """Return a network of the text, by one of the ways that lead to the same."""
    source, way = text, settings.get("source", "text")
    # A part ends the sequence that it cuts where several sentences make one, as in v2: then parts are other sequences.
    if way == "parts" and specification.sentences_per_sequence > 1:
        way = "text"
    parts = gd.TextOptions(reading=ReadOptions(part_characters=1500)) if way == "parts" else None
    # There is no corpus of profile contexts.
    if way == "corpus" and specification.profile != "contexts":
        source = gd.encode(text, folder / "corpus", client=client, specification=specification).path
    training = dict(settings.get("training", {}))
    if "order" in training:
        training["selection"] = SelectionOptions(order=training.pop("order"))
    options = gd.TrainingOptions(**training)
    if way == "twice":
        some = replace(options, max_sequences=25)
        gd.train(source, folder / "net", client=client, specification=specification, options=some)
    return gd.train(source, folder / "net", client=client, specification=specification, text=parts, options=options)


if __name__ == "__main__":
    print(json.dumps(run(*json.loads(sys.argv[1]))))
