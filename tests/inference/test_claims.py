"""Claims that a text supports, contradicts or does not hold, and how networks answer them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

import giaann_dask as gd
from giaann_dask.cli import run
from giaann_dask.errors import InputFormatError, InputMissingError, OptionError
from giaann_dask.models.base import TokenEvent
from giaann_dask.models.results import Candidate, GeneratedToken
from giaann_dask.predict.claims import OUTCOMES, Claim, as_claims, pieces, report_claims, tokens_of_answers

FACTS = [("lamp", "red"), ("door", "green"), ("boat", "white"), ("cart", "brown")]
TEXT = [f"The colour of the old {thing} in the village is {colour} ." for thing, colour in FACTS]


def claim(thing: str, true: str, *supported: str) -> Claim:
    return Claim(prompt=f"The colour of the old {thing} in the village is", true=(true,), supported=supported)


# By hand: nothing but the thing tells the colours apart, and of what is not told apart brown is the first by name.
CLAIMS = [
    claim("lamp", "red", "red"),
    claim("boat", "White", "white"),
    claim("door", "blue", "green"),
    claim("table", "blue"),
    claim("table", "Brown"),
    Claim(prompt="It is", true=("red",)),
]
EXPECTED = ["justified", "justified", "grounded_falsehood", "hallucinated", "correct_ungrounded", "abstained"]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with gd.connect(workers=0) as made:
        yield made


@pytest.fixture(scope="module")
def network(client: Client, tmp_path_factory: pytest.TempPathFactory) -> gd.Network:
    return gd.train(TEXT, tmp_path_factory.mktemp("world") / "net", client=client, regions=2)


def test_outcomes_by_hand(network: gd.Network, client: Client) -> None:
    found = network.check_claims(CLAIMS, client=client)
    assert found.outcomes == {name: EXPECTED.count(name) for name in OUTCOMES}
    assert found.answers == ("red", "white", "green", "brown", "brown", "")
    assert (found.claims, found.refused, found.commit) == (6, 1, network.commit)
    assert (found.grounded_accuracy, found.answered, found.justified_of_answered) == (2 / 6, 5 / 6, 2 / 5)
    # Blue and red are true twice, and blue, the first by name, is never supported.
    assert found.majority_accuracy == 0
    none = dict.fromkeys(OUTCOMES, 0)
    absent = none | {"hallucinated": 1, "correct_ungrounded": 1, "abstained": 1}
    contradicted = none | {"grounded_falsehood": 1}
    assert found.categories == {"supported": none | {"justified": 2}, "contradicted": contradicted, "absent": absent}
    assert found == network.check_claims(CLAIMS), "without a cluster, too"
    assert "absent" in str(found)


def test_weak_answers_abstain(network: gd.Network, client: Client) -> None:
    """A colour has 4.03 in any village, and 5.05 with its thing."""
    found = network.check_claims(CLAIMS, client=client, least_value=4.5)
    assert found.outcomes == dict(zip(OUTCOMES, (2, 0, 1, 0, 3), strict=True))
    assert network.check_claims(CLAIMS, client=client, least_value=6).answered == 0


@pytest.mark.parametrize("options", [{"profile": "v2", "sentences_per_sequence": 1}, {"profile": "contexts"}])
def test_any_model_answers(options: dict[str, Any], client: Client, tmp_path: Path) -> None:
    with gd.train(TEXT, tmp_path / "net", client=client, **options).sessions([CLAIMS[0].prompt]) as pieces_of:
        assert next(pieces_of).token is not None
    network = gd.open(tmp_path / "net")
    supported = [claim(thing, colour, colour) for thing, colour in FACTS]
    found = network.check_claims(supported, client=client)
    # The words before it do not tell a model of few words which thing it was.
    assert found.outcomes["justified"] == (4 if options["profile"] == "v2" else 1)
    assert found.answered == 1
    assert network.check_claims(supported, client=client, least_value=0.99).outcomes["abstained"] == 4


def events_of(answers: list[tuple[int, list[str]]]) -> Iterator[TokenEvent]:
    for number, words in answers:
        for word in words:
            yield TokenEvent(number, GeneratedToken(word, "", (Candidate(word, "", 1.0),), 1, ()), False)
        yield TokenEvent(number, None, True)


@examples(50)
@given(data=st.data(), count=st.integers(1, 8))
def test_reports_do_not_depend_on_the_order_of_events(data: st.DataObject, count: int) -> None:
    colours = st.sampled_from(["red", "green", "dark blue"])
    asked = [claim("lamp", data.draw(colours), *data.draw(st.sets(colours))) for _ in range(count)]
    answers = [data.draw(st.sampled_from(["", "red", "green", "dark blue", "dark red"])).split() for _ in asked]
    order = data.draw(st.permutations(range(count)))
    found = report_claims(asked, events_of([(number, answers[number]) for number in order]))
    assert found == report_claims(asked, events_of(list(enumerate(answers))))
    for at, outcome in enumerate(each.outcome(words) for each, words in zip(asked, answers, strict=True)):
        text = " ".join(answers[at])
        right, grounded = text in asked[at].true, text in asked[at].supported
        names = {(True, True): "justified", (True, False): "correct_ungrounded", (False, True): "grounded_falsehood"}
        assert outcome == (names.get((right, grounded), "hallucinated") if text else "abstained")
    assert sum(found.outcomes.values()) == count


def test_answers_of_several_words() -> None:
    asked = Claim(prompt="They met at the", true=("stone_mill",), supported=("old mill",))
    assert [asked.outcome(pieces(text)) for text in ("Stone mill .", "stone", "old mills", "the old mill")] == [
        "correct_ungrounded",
        "hallucinated",
        "hallucinated",
        "hallucinated",
    ]
    assert (tokens_of_answers([asked], subwords=False), tokens_of_answers([asked], subwords=True)) == (2, 12)


def test_a_file_of_claims(network: gd.Network, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "claims.jsonl"
    fields = ("prompt", "true", "supported")
    path.write_text("\n\n".join(json.dumps({f: getattr(each, f) for f in fields}) for each in CLAIMS), encoding="utf-8")
    assert as_claims(path) == CLAIMS
    command = ["evaluate", str(network.path), "--claims", str(path), "--workers", "0"]
    assert run([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(network.check_claims(CLAIMS).as_dict()))
    assert run([*command, "--least-value", "4.5"]) == 0
    out = capsys.readouterr().out
    assert "supported: 2 justified" in out
    assert "absent: 3 abstained" in out


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{", "line 2 of"),
        ("[]", "line 2 of"),
        ('{"prompt": "The sky is"}', "line 2 of"),
        ('{"prompt": "The sky is", "true": "blue"}', "a list of words"),
        ('{"prompt": "The sky is", "true": []}', "a prompt and an answer"),
        ('{"prompt": " ", "true": ["blue"]}', "a prompt and an answer"),
        ('{"prompt": "The sky is", "true": ["blue"], "supports": []}', "supported"),
        ('{"prompt": "The sky is", "true": [" _ "]}', "a list of words"),
    ],
)
def test_what_is_no_claim(line: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "claims.jsonl"
    path.write_text(f'{{"prompt": "The sky is", "true": ["blue"]}}\n{line}\n', encoding="utf-8")
    with pytest.raises(InputFormatError, match=expected) as raised:
        as_claims(path)
    assert "line 2 of" in str(raised.value)


def test_no_claims(tmp_path: Path) -> None:
    (tmp_path / "none").write_text("\n", encoding="utf-8")
    with pytest.raises(OptionError, match="no claims"):
        as_claims(tmp_path / "none")
    with pytest.raises(InputMissingError, match="cannot be read"):
        as_claims(tmp_path / "absent")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "neither text nor --claims"),
        (["text.txt", "--claims", "claims.jsonl"], "both text and --claims"),
        (["--claims", "claims.jsonl", "--max-sequences", "3"], "--max-sequences with --claims"),
        (["--claims", "claims.jsonl", "--timing", "exact", "--settings", "train"], "leave"),
        (["text.txt", "--least-value", "1"], "--least-value without --claims"),
    ],
)
def test_options_that_do_not_fit(
    arguments: list[str],
    expected: str,
    network: gd.Network,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "claims.jsonl").write_text('{"prompt": "The sky is", "true": ["blue"]}', encoding="utf-8")
    (tmp_path / "text.txt").write_text(TEXT[0], encoding="utf-8")
    assert run(["evaluate", str(network.path), *arguments]) == 2
    assert expected in capsys.readouterr().err
