"""Compare profile ``contexts`` with KenLM and infini-gram on the same tokens, in one run: rates, bytes, latency.

    python benchmarks/peers.py TRAINING_TEXT ... --test TEXT [--kenlm FOLDER] [--json FILE]

Each counts the same lower-cased tokens of the same sentences and then scores every token of another text, all in new
processes, one after another. KenLM is looked for as the programs ``lmplz``, ``build_binary`` and ``query``, infini-gram
as a Python package; what is not found or fails is named with the reason. KenLM builds from the source distribution on
the package index (``cmake``, Boost); neither is a dependency of this project.

``command`` is a new process from its start to one answer (``generate``, ``query``); ``open_call`` is opening in a
process of Python, to the first answer, the first of which makes and stores the tables of ``contexts``. Bytes of
``contexts`` are those of the network, with all of its commits, and of its stored tables. Seconds of processor time are
told beside seconds, because other work on the machine does not change them. Probabilities are compared over words of
the training text that are not the end of a sentence.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import math
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from rich.console import Console
from rich.table import Table
from user import REPOSITORY, Tree, machine

import giaann_dask as gd
from giaann_dask.models.words.predictor import sentences_of

Figures: TypeAlias = dict[str, float]
Sentences: TypeAlias = list[list[str]]
PROBE = "the old man said to his son that he would never come again"
_TOKEN = re.compile(r"\S+=(\d+) \d+ (-?[\d.]+)")


class PeerError(Exception):
    """A peer that is not installed or failed, with the reason."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What every peer does.

    Attributes
    ----------
    training : list of Path
        Raw text, plain or gzip.
    test : Path
        Text to score.
    sentences, test_sentences : list of list of str
        Their tokens, lower-cased.
    folder : Path
        Where files are written.
    kenlm : str or None
        Folder of KenLM's programs; by default they are looked for on the path.
    order, workers, queries : int
        Words of KenLM's n-grams, threads of infini-gram, and tokens that it is asked for.
    """

    training: list[Path]
    test: Path
    sentences: Sentences
    test_sentences: Sentences
    folder: Path
    kenlm: str | None
    order: int
    workers: int
    queries: int

    @property
    def tokens(self) -> int:
        """Tokens of the training text."""
        return sum(map(len, self.sentences))

    @property
    def test_tokens(self) -> int:
        """Tokens of the text to score."""
        return sum(map(len, self.test_sentences))


@dataclass(frozen=True)
class Spent:
    """Seconds and seconds of processor time of a process and its children, and its output."""

    seconds: float
    processor: float
    output: str


def run(command: Sequence[object], tree: Tree, standard_input: Path | None = None) -> Spent:
    """Run a command to its end.

    Raises
    ------
    PeerError
        If it fails; with the last line that it wrote.
    """
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with open(standard_input or os.devnull, "rb") as source:
        done = subprocess.run(
            [*map(str, command)],
            stdin=source,
            capture_output=True,
            cwd=tree.folder,
            env=tree.environment(),
            timeout=3600,
            check=False,
        )
    seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise PeerError(f"{Path(str(command[0])).name} ended with {done.returncode}: {lines[-1]}")
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Spent(seconds, processor, done.stdout.decode(errors="replace"))


def read_sentences(paths: Iterable[Path]) -> Sentences:
    """Return the sentences of texts as profile ``contexts`` reads them: lower-cased tokens."""
    found: Sentences = []
    for path in paths:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8") as file:
            found += [[word.lower() for word in sentence] for sentence in sentences_of(file.read())]
    return found


def bytes_of(*paths: Path) -> int:
    """Return the bytes of files, and of all files in folders."""
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*"))]
    return sum(file.stat().st_size for file in files if file.is_file())


def built(task: Task, *spent: Spent, nbytes: int) -> Figures:
    """Return the figures of counting."""
    seconds, processor = (sum(getattr(each, name) for each in spent) for name in ("seconds", "processor"))
    return {
        "tokens_per_s": task.tokens / seconds,
        "tokens_per_processor_s": task.tokens / processor,
        "bytes": nbytes,
    }


def measure_contexts(task: Task) -> Figures:
    """Return the figures of profile ``contexts``."""
    tree, network = Tree(source=REPOSITORY, folder=task.folder), task.folder / "network"
    # In one process, because the processor time of workers is not that of a child.
    options = ("--network", network, "--profile", "contexts", "--workers", 0)
    trained = run(tree.command("train", *task.training, *options), tree)
    figures = Figures()
    for name in ("first_command", "command"):
        opened = run(tree.command("generate", network, PROBE, "--max-tokens", 1), tree)
        figures |= {f"{name}_s": opened.seconds, f"{name}_processor_s": opened.processor}
    # The second process that scores has the tables of the first one.
    child = (sys.executable, __file__, "--child", network, task.test)
    first: Figures = json.loads(run(child, tree).output)
    figures |= {f"first_{name}": first[name] for name in ("open_call_s", "open_call_processor_s")}
    scored: Figures = json.loads(run(child, tree).output)
    if scored.pop("tokens") != task.test_tokens:
        raise PeerError("profile contexts scored other tokens than the others")
    stored, tables = bytes_of(network), bytes_of(task.folder / "cache")
    parts = {"bytes_of_network": stored, "bytes_of_tables": tables}
    return built(task, trained, nbytes=stored + tables) | parts | figures | scored


def score_with_best(network: str, test: str) -> None:
    """Score a text in this process and print the figures as JSON."""
    with gd.connect(workers=0) as client:
        started = time.perf_counter(), time.process_time()
        opened = gd.open(network)
        # The first call opens the tables.
        opened.score([PROBE], client=client, progress=False)
        opening = time.perf_counter() - started[0], time.process_time() - started[1]
        begun, used = time.perf_counter(), time.process_time()
        scores = opened.score(gd.Files(test), client=client, progress=False).scores
        seconds, used = time.perf_counter() - begun, time.process_time() - used
    tokens, known = len(scores.matches), scores.known
    figures = {
        "tokens": tokens,
        "open_call_s": opening[0],
        "open_call_processor_s": opening[1],
        "score_ms_per_token": 1000 * seconds / tokens,
        "score_processor_ms_per_token": 1000 * used / tokens,
        "perplexity_of_known_words": math.exp(-scores.log_probability[known].mean()),
        "top1_of_known_words": float(scores.matches[known].mean()),
    }
    print(json.dumps(figures))


def measure_kenlm(task: Task) -> Figures:
    """Return the figures of KenLM with a trie.

    Raises
    ------
    PeerError
        If a program is missing or fails.
    """
    tree = Tree(source=REPOSITORY, folder=task.folder)
    programs = {name: shutil.which(name, path=task.kenlm) for name in ("lmplz", "build_binary", "query")}
    for name, found in programs.items():
        if found is None:
            raise PeerError(f"the program {name} was not found {'on the path' if task.kenlm is None else task.kenlm}")
    text, arpa, trie, scored = (task.folder / name for name in ("train.txt", "model.arpa", "model.trie", "test.txt"))
    for path, sentences in ((text, task.sentences), (scored, task.test_sentences)):
        path.write_text("".join(" ".join(sentence) + "\n" for sentence in sentences), encoding="utf-8")
    estimate = ("-o", task.order, "-S", "20%", "-T", task.folder, "--skip_symbols", "--text", text, "--arpa", arpa)
    counted = run((programs["lmplz"], *estimate), tree)
    packed = run((programs["build_binary"], "-T", task.folder, "trie", arpa, trie), tree)
    nothing, probe = task.folder / "nothing.txt", task.folder / "probe.txt"
    nothing.touch()
    probe.write_text(PROBE + "\n", encoding="utf-8")
    query = (programs["query"], "-v", "word", "-b", trie)
    opened, asked = run(query, tree, probe), run(query, tree, scored)
    words = [(int(number), float(log)) for number, log in _TOKEN.findall(asked.output.replace("</s>=", "\0 "))]
    if len(words) != task.test_tokens:
        raise PeerError(f"query answered for {len(words)} of {task.test_tokens} tokens")
    known = [log for number, log in words if number]
    tokens = task.test_tokens
    return built(task, counted, packed, nbytes=bytes_of(trie)) | {
        "command_s": opened.seconds,
        "command_processor_s": opened.processor,
        "score_ms_per_token": 1000 * (asked.seconds - opened.seconds) / tokens,
        "score_processor_ms_per_token": 1000 * (asked.processor - opened.processor) / tokens,
        "perplexity_of_known_words": 10 ** -(sum(known) / len(known)),
    }


def measure_infini_gram(task: Task) -> Figures:
    """Return the figures of infini-gram, whose documents are the sentences.

    Raises
    ------
    PeerError
        If the package is missing or its program fails.
    """
    if importlib.util.find_spec("infini_gram") is None:
        raise PeerError("the Python package infini_gram is not installed")
    tree, index, empty = Tree(source=REPOSITORY, folder=task.folder), task.folder / "index", task.folder / "empty"
    index.mkdir()
    empty.mkdir()
    number = {word: at for at, word in enumerate(dict.fromkeys(word for line in task.sentences for word in line))}
    wide = len(number) >= (1 << 16) - 2
    dtype = np.dtype(np.uint32 if wide else np.uint16)
    separator, begins, parts, begun = np.array([(1 << 8 * dtype.itemsize) - 1], dtype), [], [], 0
    for sentence in task.sentences:
        begins.append(begun * dtype.itemsize)
        parts += [separator, np.array([number[word] for word in sentence], dtype)]
        begun += 1 + len(sentence)
    np.concatenate(parts).tofile(index / "tokenized.0")
    np.array(begins, np.uint64).tofile(index / "offset.0")
    queries = task.folder / "queries.json"
    asked = [[number.get(word, -1) for word in sentence] for sentence in task.test_sentences]
    queries.write_text(json.dumps({"words": len(number), "wide": wide, "sentences": asked}), encoding="utf-8")
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    # Its threads count short texts twice, and then it crashes.
    threads = task.workers if begun * dtype.itemsize > 1 << 21 else 1
    options = ("--token_dtype", "u32" if wide else "u16", "--cpus", threads, "--mem", 4, "--ulimit", limit)
    folders = ("--data_dir", empty, "--save_dir", index)
    indexed = run((sys.executable, "-m", "infini_gram.indexing", *folders, *options), tree)
    child = (sys.executable, __file__, "--child-infini-gram", index, queries, "--queries", task.queries)
    scored: Figures = json.loads(run(child, tree).output)
    return built(task, indexed, nbytes=bytes_of(index)) | scored


def score_with_infini_gram(index: str, queries: str, wanted: int) -> None:
    """Ask for some tokens' probabilities and distributions in this process and print the figures as JSON."""
    task = json.loads(Path(queries).read_text(encoding="utf-8"))
    dtype, words = ("u32" if task["wide"] else "u16"), task["words"]
    started, used = time.perf_counter(), time.process_time()
    engines: Any = importlib.import_module("infini_gram.engine")
    engine = engines.InfiniGramEngine(index, eos_token_id=words, vocab_size=words + 1, token_dtype=dtype)
    engine.infgram_prob([], 0)
    opening = time.perf_counter() - started, time.process_time() - used
    pairs = [
        # A context begins after its last unknown word.
        (line[max((at + 1 for at in range(end) if line[at] < 0), default=0) : end], line[end])
        for line in task["sentences"]
        for end in range(len(line))
        if line[end] >= 0
    ]
    pairs = pairs[:: max(1, len(pairs) // wanted)][:wanted]
    started, used = time.perf_counter(), time.process_time()
    chances = [engine.infgram_prob(context, word)["prob"] for context, word in pairs]
    seconds, used = time.perf_counter() - started, time.process_time() - used
    started = time.perf_counter()
    right = 0
    for context, word in pairs:
        found = engine.infgram_ntd(context)["result_by_token_id"]
        right += bool(found) and max(found, key=lambda each: found[each]["cont_cnt"]) == word
    distribution = time.perf_counter() - started
    possible = [chance for chance in chances if chance > 0]
    figures = {
        "open_call_s": opening[0],
        "open_call_processor_s": opening[1],
        "score_ms_per_token": 1000 * seconds / len(pairs),
        "score_processor_ms_per_token": 1000 * used / len(pairs),
        "distribution_ms_per_token": 1000 * distribution / len(pairs),
        "share_of_known_words_with_probability_0": 1 - len(possible) / len(pairs),
        "top1_of_known_words": right / len(pairs),
    }
    print(json.dumps(figures))


PEERS: dict[str, Callable[[Task], Figures]] = {
    "contexts": measure_contexts,
    "KenLM": measure_kenlm,
    "infini-gram": measure_infini_gram,
}


def show(found: dict[str, Figures], failed: dict[str, str]) -> None:
    """Print all figures, those of the peers with their ratio to profile ``contexts``."""
    table = Table("", *found, title="ratios to profile contexts in brackets")
    for name in dict.fromkeys(name for figures in found.values() for name in figures):
        own = found.get("contexts", {}).get(name)
        cells = []
        for peer, figures in found.items():
            value = figures.get(name)
            ratio = f" ({value / own:.3g})" if value is not None and own and peer != "contexts" else ""
            cells.append("" if value is None else f"{value:,.4g}{ratio}")
        table.add_row(name, *cells)
    Console(width=120).print(table)
    for peer, reason in failed.items():
        Console().print(f"{peer} was not run: {reason}")


def main() -> None:
    """Run the comparison and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("training", nargs="*", type=Path, help="raw text to count, plain or gzip")
    parser.add_argument("--test", type=Path, help="raw text to score")
    parser.add_argument("--kenlm", help="folder of lmplz, build_binary and query")
    parser.add_argument("--order", type=int, default=5, help="words of KenLM's n-grams")
    parser.add_argument("--workers", type=int, default=2, help="threads of infini-gram's index")
    parser.add_argument("--queries", type=int, default=5000, help="tokens that infini-gram is asked for")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--child-infini-gram", nargs=2, dest="asked", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        score_with_best(*arguments.child)
        return
    if arguments.asked:
        index, queries = arguments.asked
        score_with_infini_gram(index, queries, arguments.queries)
        return
    if not arguments.training or arguments.test is None:
        parser.error("give text to count, and text to score with --test")
    training, test = [path.resolve() for path in arguments.training], arguments.test.resolve()
    sentences, test_sentences = read_sentences(training), read_sentences([test])
    found, failed = dict[str, Figures](), dict[str, str]()
    for name, measure in PEERS.items():
        with tempfile.TemporaryDirectory() as folder:
            task = Task(
                training=training,
                test=test,
                sentences=sentences,
                test_sentences=test_sentences,
                folder=Path(folder),
                kenlm=arguments.kenlm,
                order=arguments.order,
                workers=arguments.workers,
                queries=arguments.queries,
            )
            try:
                found[name] = measure(task)
            except PeerError as error:
                failed[name] = str(error)
    show(found, failed)
    if arguments.json:
        figures = {"machine": machine(), "figures": found, "not_run": failed}
        arguments.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
