"""Text that is not English is named before training; scripts without spaces are read as characters."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from support.written_inputs import write

import giaann_dask as gd
from giaann_dask.cli import run
from giaann_dask.data import sample_text
from giaann_dask.errors import LanguageError
from giaann_dask.text.detokenizer import detokenize
from giaann_dask.text.languages import judge, require_english
from giaann_dask.text.read_options import ReadOptions
from giaann_dask.text.reading import read_parts
from giaann_dask.text.splitting import split_text

GERMAN = (
    "Der alte Müller trug das schwere Mehl langsam durch die kleine Stadt zum Bäcker. Am nächsten Morgen kam ein Kind "
    "in den Laden und fragte, ob es noch Brot gebe. Die Frau des Bäckers lachte und gab ihm ein Brötchen. Dann ging es "
    "wieder nach Hause, weil es regnete und der Wind kalt war."
)
JAPANESE = (
    "昔々、ある所に粉屋がいました。粉屋は毎日、重い小麦粉を町のパン屋まで運びました。"
    "「パンはありますか。」と子供が尋ねました。"
)
ARABIC = (
    "كان الطحان العجوز يحمل الدقيق ببطء عبر المدينة الصغيرة إلى الخباز. وفي صباح اليوم التالي دخل طفل إلى الدكان وسأل "
    "إن كان هناك خبز. ضحكت زوجة الخباز وأعطته رغيفا صغيرا ثم عاد إلى البيت لأن المطر كان ينزل. هل هناك خبز؟"
)
OTHERS = {
    "German": GERMAN,
    "Japanese": JAPANESE,
    "Arabic": ARABIC,
    "French": "Le vieux meunier portait lentement la farine à travers la ville, et le lendemain un enfant demanda s'il "
    "restait du pain. La femme du boulanger rit et lui donna un petit pain, puis il rentra à la maison.",
    "Spanish": "El viejo molinero llevaba la harina despacio por el pueblo. A la mañana siguiente un niño preguntó si "
    "quedaba pan. La mujer del panadero se rió y le dio un bollo, y después volvió a su casa porque llovía.",
    "Polish": "Stary młynarz powoli niósł mąkę przez małe miasto. Następnego ranka dziecko weszło do sklepu i "
    "zapytało, czy jest jeszcze chleb, ale żona piekarza nie miała go już dla niego.",
    "Russian": "Старый мельник медленно нёс муку через маленький город. На следующее утро ребёнок вошёл в лавку и "
    "спросил, остался ли ещё хлеб, но у жены пекаря его уже не было.",
    "Chinese": "从前有一个磨坊主，他每天把沉重的面粉运到镇上的面包师那里。有一天早上，一个孩子走进商店。",
    "Korean": "늙은 방앗간 주인은 작은 마을을 지나 빵집까지 천천히 밀가루를 날랐다. "
    "다음 날 아침 한 아이가 가게에 들어왔다.",
}
NAMES = "Anna Müller, Hans Schmidt, Maria Garcia, Giovanni Rossi, Li Wei, Jean Dupont, Olga Ivanova, Yuki Tanaka. " * 5
ENGLISH = {
    "novel with French": "“Eh bien, mon prince,” said she, “so Genoa and Lucca are now just family estates.” She "
    "spoke in the refined French in which our grandfathers spoke and thought. “Mon cher ami, c'est la vie,” he said.",
    "code": "def read(path):\n    for line in open(path):\n        if not line.strip(): continue\n        yield line\n",
    "wikitext": "= Mill =\n\nThe <unk> mill @-@ house , built in 1432 by <unk> <unk> , is on the river <unk> .",
    "names": NAMES,
    "contents": "CONTENTS\n" + " ".join(f"CHAPTER {number}" for number in ("I", "II", "III", "IV", "V", "VI") * 20),
    "numbers": "1432 17 23.5 12:30 " * 30,
    "files": "adduser apt-get awk bzip2 chmod chown cksum comm cp csplit dd df diff dirname dmesg du egrep " * 3,
    "old English": "Whan that Aprille with his shoures soote, The droghte of March hath perced to the roote, And "
    "bathed every veyne in swich licour Of which vertu engendred is the flour",
    "a language that no list is of": "Msaga unga mzee alibeba unga polepole kupitia mji mdogo. Asubuhi iliyofuata "
    "mtoto aliingia dukani na kuuliza kama mkate bado upo.",
    "words of a program": "zorp blick frum tawk snib vlor quist " * 12,
    "empty": "",
}


@pytest.mark.parametrize("language", OTHERS)
def test_other_languages_are_named(language: str) -> None:
    assert judge(OTHERS[language] * 3).language == language


@pytest.mark.parametrize("kind", ENGLISH)
def test_english_of_many_kinds_and_what_no_language_is_told_of_are_not_refused(kind: str) -> None:
    assert judge(ENGLISH[kind] * 3).language == ""


def checked(folder: Path, texts: list[str], caplog: pytest.LogCaptureFixture, **options: int) -> list[str]:
    caplog.clear()
    paths = [write(folder / f"{number}.txt", text) for number, text in enumerate(texts)]
    parts = require_english(read_parts(paths, ReadOptions(**options)))
    assert [part.source for part in parts][:: len(paths)] != []
    return [record.getMessage() for record in caplog.records]


def test_the_first_parts_decide_and_later_ones_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    english = "The miller carried the flour to the baker in the morning. " * 60
    assert checked(tmp_path, [english, english], caplog) == []
    (said,) = checked(tmp_path, [english, GERMAN * 12], caplog)
    assert "1.txt' looks like German: the lexicon, which is English, knows" in said
    for texts in ([GERMAN * 12, english], [GERMAN], [GERMAN[:60], GERMAN]):
        with pytest.raises(LanguageError, match=r"0\.txt' looks like German.*spacy:de_core_news_sm.*profile contexts"):
            checked(tmp_path, texts, caplog, part_characters=400)
    # Few words say nothing, and a book may begin in another language.
    assert checked(tmp_path, ["Guten Morgen, sagte er."], caplog) == []
    assert checked(tmp_path, [GERMAN + "\n\n" + english * 3], caplog) == []
    (said,) = checked(tmp_path, [NAMES], caplog)
    assert "knows" in said


def test_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, net = write(tmp_path / "de.txt", GERMAN * 3), str(tmp_path / "net")
    assert run(["train", path, "--network", net, "--workers", "0"]) == 2
    error = capsys.readouterr().err
    assert "looks like German" in error
    assert "set --tagger to spacy:de_core_news_sm" in error
    assert "--language to any" in error
    assert not Path(net).exists()
    assert run(["encode", path, "--out", str(tmp_path / "corpus"), "--workers", "0"]) == 2
    assert run(["train", path, "--network", net, "--workers", "0", "--language", "any"]) == 0
    assert run(["train", path, "--network", f"{net}-words", "--profile", "contexts", "--workers", "0"]) == 0
    with gd.connect(workers=0) as client:
        gd.train(sample_text(), tmp_path / "english", client=client, max_sequences=5)
        with pytest.raises(LanguageError, match=r"looks like Japanese.*which reads characters"):
            gd.train([JAPANESE] * 9, tmp_path / "english", client=client)


# Scripts without spaces


def test_characters_of_scripts_without_spaces() -> None:
    assert list(split_text(["猫はTokyoで寝た。「いいえ」と犬。"]).sentences()) == [
        ["猫", "は", "Tokyo", "で", "寝", "た", "。"],
        ["「", "い", "い", "え", "」", "と", "犬", "。"],
    ]
    split = split_text(["ที่นี่ 한국어 text"])
    assert list(split.sentences()) == [["ที่", "นี่", "한국어", "text"]]
    assert split.spaced.tolist() == [False, True, True, True]
    long = "粉屋は毎日" * 100
    split = split_text([long])
    assert "".join(next(split.sentences())) == long
    assert split.spaced.tolist() == [False] * 499 + [True]
    tokens = [(word, word) for sentence in split_text([JAPANESE]).sentences() for word in sentence]
    assert detokenize(tokens, False) == JAPANESE
    assert detokenize([(word, word) for word in ("the", "mill", ".")], False) == "The mill."


def test_contexts_of_japanese(tmp_path: Path) -> None:
    text = "粉屋は重い小麦粉を町のパン屋まで運びました。" * 5
    with gd.connect(workers=0) as client:
        network = gd.train([text], tmp_path / "net", profile="contexts", client=client)
        assert network.training_report.sequences > 0
        found = network.generate("粉屋は重い", max_tokens=5, client=client)
    assert "小麦粉を町" in found.text
