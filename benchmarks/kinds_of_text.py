"""Compare profile ``contexts`` with modified Kneser-Ney 5-grams of the same counts on texts of different kinds.

Each pair of files is a text that is counted and another one that is scored, as in `benchmarks.choose_weights`; with
``--kenlm`` also by KenLM's ``lmplz`` and ``query``, whose n-grams it counts from the same tokens::

    python benchmarks/kinds_of_text.py bible.txt apocrypha.txt manuals.txt other-manual.txt --kenlm kenlm/build/bin
"""

from __future__ import annotations

import argparse
import math
import re
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
from choose_weights import first_tokens, stream_of

from giaann_dask.models.contexts.kinds import count_kinds
from giaann_dask.models.contexts.scores import BEST, KNESER_NEY, LogLinearModel, PoolingOptions
from giaann_dask.models.contexts.specification import CONTEXT_NAMES
from giaann_dask.models.contexts.tables import PackedTables, build_tables
from giaann_dask.models.words.scores import TextScores
from giaann_dask.models.words.stream import TokenStream
from giaann_dask.spec import Specification


def sentences(stream: TokenStream) -> str:
    """Return the tokens of a text as words in lower case, a sentence a line."""
    words = np.array(stream.words, object)[stream.index]
    return "\n".join(" ".join(part.tolist()) for part in np.split(words, np.flatnonzero(stream.place == 0)[1:])) + "\n"


def perplexity_of_kenlm(counted: TokenStream, scored: TokenStream, programs: Path) -> float:
    """Return KenLM's perplexity of the words of a text that were counted, without the ends of sentences."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train").write_text(sentences(counted), encoding="utf-8")
        build = [programs / "lmplz", "-o", "5", "--text", folder / "train", "--arpa", folder / "arpa", "-T", folder]
        subprocess.run([*map(str, build), "--discount_fallback"], check=True, capture_output=True)
        query = [str(programs / "query"), "-v", "word", "-n", str(folder / "arpa")]
        given = sentences(scored)
        told = subprocess.run(query, input=given, check=True, capture_output=True, text=True).stdout
    # ``word=number length logarithm`` for each; 0 is the number of unknown words, and the last one ends the sentence.
    found = [re.findall(r"=(\d+) \d+ (\S+)", line) for line in told.splitlines() if "Total:" in line]
    logs = [float(value) for line in found for number, value in line if number != "0"]
    return 10 ** -(sum(logs) / len(logs))


def score(tables: PackedTables, options: PoolingOptions, stream: TokenStream) -> tuple[TextScores, float]:
    """Return the scores of a text and the milliseconds of processor time for each token, compilation apart."""
    model = LogLinearModel(tables, options)
    model.score(first_tokens(stream, 10))
    started = time.process_time()
    scores = model.score(stream)
    return scores, 1e3 * (time.process_time() - started) / len(stream)


def main() -> None:
    """Print perplexity of the counted words and of all, and top-1, of each text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", help="pairs of a text to count and a text to score")
    parser.add_argument("--tokens", type=int, default=60_000, help="tokens of each text to score")
    parser.add_argument("--kenlm", type=Path, help="folder of KenLM's programs")
    given = parser.parse_args()
    kinds = [CONTEXT_NAMES.index(name) for name in Specification(profile="contexts").contexts]
    ratios = []
    print("text | counted | scored | model | perplexity of known words | of all | top-1 | ms a token")
    for train, test in zip(given.files[::2], given.files[1::2], strict=True):
        counted, scored = stream_of(train), first_tokens(stream_of(test), given.tokens)
        tables = build_tables([count_kinds(counted, kinds)], counted.words)
        costs = []
        for name, options in (("contexts", BEST), ("Kneser-Ney", KNESER_NEY)):
            found, milliseconds = score(tables, options, scored)
            known, every = (math.exp(-found.log_probability[which].mean()) for which in (found.known, slice(None)))
            costs.append(known)
            figures = f"{known:.2f} | {every:.1f} | {found.matches.mean():.4f} | {milliseconds:.4f}"
            print(f"{test.stem} | {len(counted):,} | {len(scored):,} | {name} | {figures}", flush=True)
        if given.kenlm:
            print(f"{test.stem} | | | KenLM | {perplexity_of_kenlm(counted, scored, given.kenlm):.2f}", flush=True)
        ratios.append(costs[0] / costs[1])
    print(f"perplexity of contexts by that of Kneser-Ney: mean {np.mean(ratios):.3f}, largest {max(ratios):.3f}")


if __name__ == "__main__":
    main()
