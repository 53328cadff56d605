"""Strategies of small texts and of specifications of networks that are sums, for properties of addition."""

from __future__ import annotations

from hypothesis import strategies as st

import giaann_dask as gd
from giaann_dask.data import ADJECTIVES, NOUNS, PREPOSITIONS, VERBS

# By the place of a text, so that no two texts are the same.
_NAMES = ("Anna", "Bruno", "Clara", "David", "Emma")

_phrase = st.builds(
    "{} the {} {}".format,
    st.sampled_from([*PREPOSITIONS[:4], *VERBS[:4], "and", "while", "of"]),
    st.sampled_from([*ADJECTIVES[:3], "stone - grey", "miller's"]),
    st.sampled_from([*NOUNS[:5], "mills", "saw"]),
)
_sentence = st.lists(_phrase, min_size=3, max_size=5).map(lambda each: f"{VERBS[0]} it {' '.join(each)}.")


def random_texts(count: int) -> st.SearchStrategy[list[str]]:
    """Return a strategy of so many different texts of one to four sentences each."""
    one = st.lists(_sentence, min_size=1, max_size=4)
    return st.lists(one, min_size=count, max_size=count).map(
        lambda drawn: [
            " ".join(f"{name if not place else 'It'} {sentence}" for place, sentence in enumerate(sentences))
            for name, sentences in zip(_NAMES, drawn, strict=False)
        ]
    )


@st.composite
def random_specifications(draw: st.DrawFn, trace: bool = True) -> gd.Specification:
    """Return a strategy of specifications of networks that do not depend on the order of their text."""
    profile = draw(st.sampled_from(["v2", "v1", "contexts"]))
    options: dict[str, object] = {"regions": draw(st.integers(1, 3)), "trace": trace and draw(st.booleans())}
    if profile != "contexts":
        options |= {
            "flags": "canonical",
            "placement": draw(st.sampled_from(["hash", "balanced"])),
            "branches": draw(st.integers(1, 3)),
            "pos_factors": draw(st.sampled_from([{}, {"VERB": 3.0}, {"NOUN": 0.5, "DET": 2.0}])),
            "proximity_scale": draw(st.sampled_from([1.0, 10.0])),
            "seed_tokens": draw(st.integers(6, 8)),
        }
    if profile == "v2":
        columns, features = draw(st.sampled_from([(4, 4), (2, 3), (0, 5)]))
        options |= {
            "segment_counts": (columns, features),
            "sentences_per_sequence": draw(st.integers(0, 3)),
            "maximum_tokens": draw(st.sampled_from([12, 80])),
            "column_catch_all": columns > 0 and draw(st.booleans()),
            "invented_boundaries": draw(st.booleans()),
            "self_transitions": draw(st.booleans()),
        }
        if draw(st.booleans()):
            options |= {"lif": False, "proximity_exponent": 2.0}
    return gd.Specification(profile=profile, **options)  # type: ignore[arg-type]
