"""The n-gram model of profile ``contexts`` in the ARPA format: its probabilities, its bytes, and KenLM's reading."""

from __future__ import annotations

import gzip
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from support.documents import read_documents

import giaann_dask as gd
from giaann_dask.errors import OptionError
from giaann_dask.models.words.stream import TokenStream

DATA = Path(gd.__file__).resolve().parent / "data"
TRAIN, TEST = DATA / "sample.txt", DATA / "sample_test.txt"
ORDER = 5

Ngram: TypeAlias = tuple[str, ...]


class Arpa:
    """An ARPA file as its format is defined: probabilities of n-grams, else of shorter ones with backoff."""

    def __init__(self, path: Path) -> None:
        self.chance: dict[Ngram, float] = {}
        self.backoff: dict[Ngram, float] = {}
        head, *sections, end = path.read_text(encoding="utf-8").split("\n\\")
        assert (head.splitlines()[0], end) == ("\\data\\", "end\\\n")
        lengths = dict(line.removeprefix("ngram ").split("=") for line in head.splitlines()[1:] if line)
        for order, section in enumerate(sections, 1):
            title, *lines = section.splitlines()
            lines = [line for line in lines if line]
            assert (title, len(lines)) == (f"{order}-grams:", int(lengths[str(order)]))
            for line in lines:
                value, words, *left = line.split("\t")
                ngram = tuple(words.split(" "))
                assert len(ngram) == order
                self.chance[ngram] = float(value)
                self.backoff[ngram] = float(left[0]) if left else 0.0

    @property
    def words(self) -> list[str]:
        return [ngram[0] for ngram in self.chance if len(ngram) == 1 and ngram[0] not in ("<s>", "</s>")]

    def log_chance(self, before: Sequence[str], word: str) -> float:
        """Return the logarithm to base 10 of a word's probability after others."""
        context = tuple(each if (each,) in self.chance else "<unk>" for each in before[-ORDER + 1 :])
        if (*context, word) in self.chance:
            return self.chance[*context, word]
        if not context:
            return self.chance[("<unk>",)]
        return self.backoff.get(context, 0.0) + self.log_chance(context[1:], word)


def train(text: Any, folder: Path, **options: Any) -> gd.Network:
    rule = gd.Specification(profile=options.pop("profile", "contexts"), regions=options.pop("regions", 3))
    with gd.connect(workers=0) as client:
        return gd.train(text, folder, client=client, specification=rule, options=gd.TrainingOptions(**options))


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> gd.Network:
    return train(TRAIN, tmp_path_factory.mktemp("arpa") / "net")


@pytest.fixture(scope="module")
def file(network: gd.Network) -> Path:
    return network.export(network.path.with_suffix(".arpa")).connections


@pytest.fixture(scope="module")
def arpa(file: Path) -> Arpa:
    return Arpa(file)


def places(stream: TokenStream) -> list[tuple[list[str], str]]:
    """Return what stands before each token in its sentence, and the token."""
    words, found = [stream.words[at] for at in stream.index.tolist()], []
    for at, place in enumerate(stream.place.tolist()):
        found.append((["<s>", *words[at - place : at]], words[at]))
    return found


def known_scores(network: gd.Network, words: Sequence[str]) -> list[tuple[list[str], str, float]]:
    """Return places of the test text whose token the network knows, with our own baseline's logarithm to base 10."""
    with gd.connect(workers=0) as client:
        scored = network.score(TEST, client=client, options=gd.ScoringOptions(baseline="ngram"))
    assert scored.baseline is not None
    logs = (scored.baseline.smoothed.log_probability / math.log(10)).tolist()
    found = places(TokenStream.from_documents(read_documents([TEST])))
    return [(before, word, log) for (before, word), log in zip(found, logs, strict=True) if word in words]


def test_probabilities_are_those_of_our_own_ngrams(network: gd.Network, arpa: Arpa) -> None:
    scores = known_scores(network, arpa.words)
    assert len(scores) > 500
    assert max(abs(arpa.log_chance(before, word) - log) for before, word, log in scores) < 1e-5


def test_probabilities_add_up_to_one(arpa: Arpa) -> None:
    found = places(TokenStream.from_documents(read_documents([TEST])))
    contexts = [[], ["<s>"], ["no such word"], *(before for before, _ in found[:100])]
    for context in contexts:
        assert sum(10 ** arpa.log_chance(context, word) for word in arpa.words) == pytest.approx(1, abs=1e-5)


def test_the_last_words_of_every_ngram_are_listed(arpa: Arpa) -> None:
    """Without them pocketsphinx leaves an n-gram out (`findings/arpa_in_pocketsphinx.sh`)."""
    assert max(map(len, arpa.chance)) == ORDER
    assert {ngram[1:] for ngram in arpa.chance if len(ngram) > 1} <= arpa.chance.keys()


def test_probabilities_are_those_of_the_formula(arpa: Arpa) -> None:
    """Modified Kneser-Ney smoothing (Chen and Goodman 1998), counted here with dictionaries."""
    counts = [Counter[Ngram]() for _ in range(ORDER)]
    for before, word in places(TokenStream.from_documents(read_documents([TRAIN]))):
        for order in range(2, min(ORDER, len(before) + 1) + 1):
            counts[order - 1][*before[len(before) - order + 1 :], word] += 1
    for shorter, longer in pairwise(counts[1:]):
        preceding = Counter(ngram[1:] for ngram in longer)
        shorter.update({ngram: preceding[ngram] - shorter[ngram] for ngram in preceding})
    assert [len(each) for each in counts[1:]] == [
        sum(len(ngram) == order for ngram in arpa.chance) for order in range(2, ORDER + 1)
    ]
    for each in counts[1:]:
        once, twice, thrice, often = (sum(count == number for count in each.values()) for number in range(1, 5))
        scale = once / (once + 2 * twice)
        lost = (0.0, 1 - 2 * scale * twice / once, 2 - 3 * scale * thrice / twice, 3 - 4 * scale * often / thrice)
        total, freed = Counter[Ngram](), defaultdict[Ngram, float](float)
        for ngram, count in each.items():
            total[ngram[:-1]] += count
            freed[ngram[:-1]] += lost[min(count, 3)]
        for ngram, count in each.items():
            before = ngram[:-1]
            shorter_chance = 10 ** arpa.log_chance(ngram[1:-1], ngram[-1])
            expected = (count - lost[min(count, 3)] + freed[before] * shorter_chance) / total[before]
            assert 10 ** arpa.chance[ngram] == pytest.approx(expected, rel=1e-5)


def test_kenlm_reads_it(network: gd.Network, file: Path, arpa: Arpa) -> None:
    kenlm = pytest.importorskip("kenlm")
    model = kenlm.Model(str(file))
    assert model.order == ORDER
    for before, word, log in known_scores(network, arpa.words):
        *_, (found, _, unknown) = model.full_scores(" ".join((*before[1:], word)), bos=True, eos=False)
        assert (10**found, unknown) == (pytest.approx(10**log, abs=1e-4, rel=1e-4), False)


def test_bytes_do_not_depend_on_the_training(network: gd.Network, file: Path, tmp_path: Path) -> None:
    texts = [each.read_bytes() for each in (file, network.export(tmp_path / "again.arpa").connections)]
    other = train(TRAIN, tmp_path / "other", regions=17, batch_sequences=7)
    texts.append(other.export(tmp_path / "other.arpa").connections.read_bytes())
    zipped = [each.export(tmp_path / f"{at}.arpa.gz").connections for at, each in enumerate((network, other))]
    assert len({path.read_bytes() for path in zipped}) == 1
    assert {gzip.decompress(zipped[0].read_bytes()), *texts} == {texts[0]}
    assert sorted(each.name for each in file.parent.iterdir()) == ["net", "net.arpa"]


def test_after_forgetting_it_is_that_of_a_training_without(file: Path, tmp_path: Path) -> None:
    text = tmp_path / "secret.txt"
    text.write_text("The old miller was undisclosed. The undisclosed miller carried the flour!", encoding="utf-8")
    path = train([TRAIN, text], tmp_path / "both").path
    assert b"undisclosed" in gd.open(path).export(tmp_path / "with.arpa").connections.read_bytes()
    with gd.connect(workers=0) as client:
        gd.forget(path, [text], client=client)
    assert gd.open(path).export(tmp_path / "without.arpa").connections.read_bytes() == file.read_bytes()


def test_words_that_the_format_reserves(tmp_path: Path) -> None:
    text = tmp_path / "words.conllu"
    words = ["10 000", "<s>", "</s>", "10_000", "<unk>"]
    text.write_text("".join(f"{at}\t{word}" + "\t_" * 8 + "\n" for at, word in enumerate(words, 1)) + "\n")
    arpa = Arpa(train(text, tmp_path / "net").export(tmp_path / "net.arpa").connections)
    assert set(arpa.words) == {"\\10_000", "\\<s>", "\\</s>", "10_000", "\\<unk>", "<unk>"}
    assert ("<s>", "\\10_000", "\\<s>", "\\</s>", "10_000") in arpa.chance


def test_other_models_refuse_it(tmp_path: Path) -> None:
    network = train(["The old miller carried the flour to the mill."], tmp_path / "net", profile="v1")
    with pytest.raises(OptionError, match=r"net\.arpa for a network of the model v1; expected a file that ends with"):
        network.export(tmp_path / "net.arpa")
