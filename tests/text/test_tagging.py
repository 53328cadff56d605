"""Test taggers by name, the default tagger's rules and its accuracy compared with a plain word list."""

from __future__ import annotations

import gzip
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.examples import examples

from giaann_dask.errors import InputFormatError, MissingDependencyError, OptionError
from giaann_dask.lazy import compiled
from giaann_dask.spec import PARTS_OF_SPEECH
from giaann_dask.text import splitting
from giaann_dask.text.lexicon import search
from giaann_dask.text.lexicon import words as words_module
from giaann_dask.text.lexicon.rules import CLOSED, FOLLOWS, UPOS, Reading, read_words
from giaann_dask.text.lexicon.search import TAGS, ReadingTable, best_tags
from giaann_dask.text.lexicon.tagger import Kernels
from giaann_dask.text.lexicon.words import dictionary_lemmas, find_lemma
from giaann_dask.text.reading import read_parts
from giaann_dask.text.splitting import split_text
from giaann_dask.text.tagging import LexiconTagger, make_tagger, tag_part
from giaann_dask.text.tokens import Part, TaggedSentence

NOUNS = ("NOUN", "PROPN")

SENTENCES = """
the/DT book/NN is/VBZ old/JJ ./.
they/PRP book/VBP a/DT room/NN ./.
I/PRP want/VBP to/TO book/VB it/PRP ./.
she/PRP may/MD book/VB rooms/NNS ,/, too/RB ./.
he/PRP works/VBZ here/RB ./.
his/PRP$ works/NNS are/VBP here/RB ./.
she/PRP has/VBZ seen/VBN him/PRP ./.
it/PRP was/VBD taken/VBN by/IN them/PRP ./.
do/VBP you/PRP know/VB her/PRP ?/.
I/PRP do/VBP n't/RB know/VB her/PRP$ name/NN ./.
we/PRP ca/MD n't/RB go/VB ./.
he/PRP 'll/MD come/VB tomorrow/NN ./.
the/DT dog/NN 's/POS tail/NN is/VBZ long/JJ ./.
it/PRP 's/VBZ raining/VBG ./.
let/VB 's/PRP go/VB ./.
yesterday/NN we/PRP met/VBD Mary/NNP in/IN Paris/NNP ./.
please/UH contact/VB me/PRP ./.
that/DT man/NN said/VBD that/IN he/PRP knew/VBD ./.
the/DT blorpiness/NN grew/VBD quickly/RB ./.
there/EX are/VBP two/CD cats/NNS ./.
you/PRP should/MD never/RB run/VB ./.
have/VBP you/PRP seen/VBN it/PRP ?/.
he/PRP said/VBD :/: "/`` No/DT way/NN !/. "/''
""".strip().splitlines()


def split(line: str) -> tuple[list[str], list[str]]:
    pairs = [token.rpartition("/") for token in line.split()]
    return [word for word, _, _ in pairs], [tag for _, _, tag in pairs]


def tag(text: str) -> TaggedSentence:
    return make_tagger("lexicon").tag([text.split()])[0]


def read_conllu(path: Path) -> list[TaggedSentence]:
    found = []
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for block in file.read().split("\n\n"):
            rows = [line.split("\t") for line in block.split("\n") if line and not line.startswith("#")]
            words = [row for row in rows if row[0].isdigit()]
            if words:
                found.append(TaggedSentence(*([row[k] for row in words] for k in (1, 2, 3, 4))))
    return found


@pytest.mark.parametrize("line", SENTENCES)
def test_words_are_tagged_by_context(line: str) -> None:
    words, expected = split(line)
    assert list(make_tagger("lexicon").tag([words])[0].xpos) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("She has a car .", "PRON VERB DET NOUN PUNCT"),
        ("She has slept .", "PRON AUX VERB PUNCT"),
        ("Do you sleep ?", "AUX PRON VERB PUNCT"),
        ("We do it because of you", "PRON VERB PRON ADP ADP PRON"),
        ("He left because he slept", "PRON VERB SCONJ PRON VERB"),
        ("This is it", "PRON AUX PRON"),
        ("This cat purrs", "DET NOUN VERB"),
        ("Someone did not come", "PRON AUX PART VERB"),
        ("He saw nothing in New York", "PRON VERB PRON ADP ADJ PROPN"),
        ("Either tea or coffee", "DET NOUN CCONJ NOUN"),
    ],
)
def test_universal_parts_of_speech(text: str, expected: str) -> None:
    assert " ".join(tag(text).upos) == expected


@pytest.mark.parametrize("mark", [*".,;:!?()[]\"'-—–…“”‘", "...", "--", "``", "''", "?!", "***"])
def test_punctuation_is_punctuation(mark: str) -> None:
    assert tag(f"the cat {mark} slept").upos[2] == "PUNCT"


def test_curly_apostrophes_are_apostrophes() -> None:
    straight, curly = tag("he does n't like the cat 's tail"), tag("he does n’t like the cat ’s tail")
    assert curly.xpos == straight.xpos
    assert curly.lemmas == straight.lemmas
    assert curly.forms[2] == "n’t"
    assert straight.xpos[6] == "POS"


def test_capitals_are_ignored_in_a_sentence_of_capitals() -> None:
    assert tag("THE OLD MEN WERE SITTING THERE").upos == tag("the old men were sitting there").upos
    assert tag("He joined NASA early").upos[2] == "PROPN"


@pytest.mark.parametrize(
    ("word", "xpos", "upos", "expected"),
    [
        ("Geese", "NNS", "NOUN", "goose"),
        ("went", "VBD", "VERB", "go"),
        ("weeks", "NNS", "NOUN", "week"),
        ("worst", "JJS", "ADJ", "bad"),
        ("me", "PRP", "PRON", "I"),
        ("n't", "RB", "PART", "not"),
        ("Was", "VBD", "AUX", "be"),
        ("’ll", "MD", "AUX", "will"),
        ("Paris", "NNP", "PROPN", "Paris"),
        ("Islands", "NNPS", "PROPN", "Island"),
        ("STATES", "NNPS", "PROPN", "STATE"),
        ("blorps", "NNS", "NOUN", "blorp"),
        ("blorping", "VBG", "VERB", "blorp"),
        ("blorrying", "VBG", "VERB", "blorry"),
        ("blorried", "VBD", "VERB", "blorry"),
        ("1970s", "NNS", "NOUN", "1970s"),
        ("“", "``", "PUNCT", '"'),
    ],
)
def test_lemmas(word: str, xpos: str, upos: str, expected: str) -> None:
    assert find_lemma(word, xpos, upos) == expected


@pytest.mark.parametrize("word", ["running", "geese", "better", "ran", "sheep", "saw", "weeks", "blorp"])
def test_dictionary_file_agrees_with_its_package(word: str) -> None:
    lemminflect = pytest.importorskip("lemminflect")
    assert dictionary_lemmas(word) == lemminflect.getAllLemmas(word)


def test_tables_are_consistent() -> None:
    for word, readings in CLOSED.items():
        for reading in readings:
            assert reading.tag in UPOS, word
            assert reading.kind in FOLLOWS, word
    for kind, row in FOLLOWS.items():
        assert set(row) <= set(UPOS), kind


@given(st.lists(st.lists(st.text(max_size=8), max_size=12), max_size=4))
@example([["IF"]])
@examples(150)
def test_any_tokens_get_known_tags(sentences: list[list[str]]) -> None:
    tagged = make_tagger("lexicon").tag(sentences)
    assert [list(sentence.forms) for sentence in tagged] == sentences
    for sentence in tagged:
        assert {len(field) for field in sentence} == {len(sentence.forms)}
        assert set(sentence.xpos) <= set(UPOS)
        assert set(sentence.upos) <= {*PARTS_OF_SPEECH, "SPACE"}


@pytest.mark.parametrize("character", ["1", "a", "A", ".", "-", "1,", "a@", "A.", ":", "a-"])
@pytest.mark.timeout(120)
def test_huge_tokens_are_tagged_quickly(character: str) -> None:
    """Where it took the square of their length, it would take minutes."""
    assert len(make_tagger("lexicon").tag([[character * 200_000 + "x", character * 200_000]])[0].upos) == 2


def test_tags_depend_on_the_sentence_alone() -> None:
    sentences = [split(line)[0] for line in SENTENCES]
    together = LexiconTagger().tag(sentences)
    find_lemma.cache_clear()
    alone = [LexiconTagger().tag([sentence])[0] for sentence in reversed(sentences)]
    assert alone[::-1] == together


def _weight_of(path: Sequence[Reading]) -> float:
    """Return the total weight of the readings of a whole sentence."""
    state, total = "^", 0.0
    for reading in path:
        total += reading.prior + search.weight_after(state, reading.tag)
        state = search.kind_after(state, reading.kind)
    return total


SEARCH = Kernels.of(compiled).search
# Words of every kind that the transitions treat specially, and some with many readings.
_SEARCHED = sorted(
    read_words("that her his is did do have has not and but well like back better you it there saw run close .")
)


@given(st.lists(st.sampled_from(_SEARCHED), min_size=1, max_size=5))
@examples(150)
def test_search_finds_the_greatest_weight(words: list[str]) -> None:
    entries = [words_module.find_readings(word, "inside") for word in words]
    table = ReadingTable.of(entries)
    tags = [TAGS[tag] for tag in best_tags(np.arange(len(words)), np.array([len(words)]), table, SEARCH)]
    paths = [path for path in product(*entries) if [reading.tag for reading in path] == tags]
    greatest = max(map(_weight_of, product(*entries)))
    # An unambiguous word ends a search; the search of every part is exact, so the whole is, too.
    assert max(map(_weight_of, paths)) == pytest.approx(greatest, abs=1e-9)


def test_missing_word_lists_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for lists in (words_module.frequent_tags, words_module.dictionary_lines):
        lists.cache_clear()
    with pytest.raises(MissingDependencyError, match="pip install textblob"):
        LexiconTagger()


def test_texts_with_a_common_table_are_tagged_as_alone(shared_folder: Path) -> None:
    part = next(read_parts([str(shared_folder / "data" / "books" / "moby-dick.txt.gz")]))
    passages = [[passage, passage.upper()] for passage in part.passages[:200]]
    together = [make_tagger("lexicon").tag(list(split_text(each).sentences())) for each in passages]
    alone = [[sentence[:4] for sentence in sentences] for sentences in together]
    splitting.shared_tokenizer.cache_clear()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda each: tag_part(Part("", "text", tuple(each), (0, 0)), "lexicon"), passages))
    assert [[sentence[:4] for sentence in text.sentences()] for text in found] == alone
    assert len({id(text.entries) for text in found}) == 1


def test_default_tagger_imports_no_other_tagger() -> None:
    program = (
        "import sys; from giaann_dask.text.tagging import make_tagger;"
        "make_tagger('lexicon').tag([['Cats', 'sleep']]);"
        "print(sorted({'spacy', 'nltk', 'textblob', 'lemminflect'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_gold_rejects_plain_text() -> None:
    with pytest.raises(InputFormatError, match="CoNLL-U"):
        tag_part(Part("", "text", ("Cats",), (0,)), "gold")


@pytest.mark.parametrize("name", ["", "Lexicon", "spacy", "spacy:", "nltk", "en_core_web_sm"])
def test_unknown_names_are_rejected(name: str) -> None:
    with pytest.raises(OptionError, match="tagger is"):
        make_tagger(name)


def save_pipeline(folder: Path, attributes: dict[str, str]) -> str:
    spacy = pytest.importorskip("spacy")
    pipeline = spacy.blank("en")
    ruler = pipeline.add_pipe("attribute_ruler")
    ruler.add(patterns=[[{"LOWER": "cats"}]], attrs=attributes)
    pipeline.to_disk(folder)
    return f"spacy:{folder}"


def test_spacy_pipeline_by_path(tmp_path: Path) -> None:
    name = save_pipeline(tmp_path / "cats", {"TAG": "NNS", "POS": "NOUN", "LEMMA": "cat"})
    tagger = make_tagger(name)
    sentences: list[Sequence[str]] = [["Cats", "do", "n't"], [], ["can not", "cats"]]
    tagged = tagger.tag(sentences)
    assert [list(sentence.forms) for sentence in tagged] == [list(sentence) for sentence in sentences]
    assert tagged[0] == TaggedSentence(["Cats", "do", "n't"], ["cat", "do", "n't"], ["NOUN", "", ""], ["NNS", "", ""])
    assert tagged[2].lemmas == ["can not", "cat"]
    assert make_tagger(name) is tagger


@pytest.mark.parametrize(
    ("attributes", "missing"),
    [
        ({"TAG": "NNS", "LEMMA": "cat"}, "parts of speech"),
        ({"POS": "NOUN", "LEMMA": "cat"}, "Penn tags"),
        ({"POS": "NOUN", "TAG": "NNS"}, "lemmas"),
    ],
)
def test_incomplete_spacy_pipelines_are_rejected(tmp_path: Path, attributes: dict[str, str], missing: str) -> None:
    with pytest.raises(OptionError, match=missing):
        make_tagger(save_pipeline(tmp_path / "cats", attributes))


def test_error_of_a_missing_spacy_pipeline_names_the_fix() -> None:
    pytest.importorskip("spacy")
    with pytest.raises(MissingDependencyError, match="spacy download no_such_pipeline"):
        make_tagger("spacy:no_such_pipeline")


def plain_word_list(sentences: list[list[str]]) -> list[TaggedSentence]:
    """Tag given tokens as TextBlob's PatternTagger does, without lemmas."""
    textblob: Any = pytest.importorskip("textblob.en")
    found = []
    for words in sentences:
        tags = [pair[1] for pair in textblob.parser.find_tags(list(words))]
        upos = [UPOS.get(name, "X") for name in tags]
        found.append(TaggedSentence(words, [word.lower() for word in words], upos, tags))
    return found


def score(gold: list[TaggedSentence], ours: list[TaggedSentence]) -> dict[str, float]:
    tokens = xpos = upos = lemmas = both = found = wanted = 0
    for right, mine in zip(gold, ours, strict=True):
        rows = zip(right.lemmas, right.upos, right.xpos, mine.lemmas, mine.upos, mine.xpos, strict=True)
        for lemma, part, name, our_lemma, our_part, our_name in rows:
            tokens += 1
            xpos += name == our_name
            upos += part == our_part
            lemmas += lemma.lower() == our_lemma.lower()
            wanted += part in NOUNS
            found += our_part in NOUNS
            both += part in NOUNS and our_part in NOUNS
    return {
        "xpos": xpos / tokens,
        "upos": upos / tokens,
        "noun_precision": both / found,
        "noun_recall": both / wanted,
        "noun_f1": 2 * both / (found + wanted),
        "lemma": lemmas / tokens,
    }


def test_accuracy_compared_with_the_plain_word_list(shared_folder: Path) -> None:
    gold = read_conllu(shared_folder / "data" / "ewt" / "test.conllu.gz")[::6]
    sentences = [list(sentence.forms) for sentence in gold]
    tokens = sum(map(len, sentences))
    scores = {}
    for name, function in (("plain", plain_word_list), ("lexicon", make_tagger("lexicon").tag)):
        function(sentences[:1])
        begin = time.process_time()
        tagged = function(sentences)
        speed = tokens / (time.process_time() - begin)
        scores[name] = score(gold, tagged)
        print(name, {key: round(value, 4) for key, value in scores[name].items()}, f"{speed:.0f} tokens/s")
    assert all(scores["lexicon"][key] > scores["plain"][key] for key in scores["plain"])
    assert scores["lexicon"]["xpos"] > 0.90
    assert scores["lexicon"]["noun_f1"] > 0.94
    assert scores["lexicon"]["lemma"] > 0.97
