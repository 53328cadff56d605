"""Classify tokens by the punctuation rules of English: what ends a sentence, what attaches to its neighbours.

Does not cover: dividing text (`splitting`), writing it (`detokenizer`).
"""

from __future__ import annotations

FINAL = frozenset([".", "!", "?", "。", "！", "？"])
UNCERTAIN = frozenset(["...", "....", "…", "etc.", "&c.", "a.m.", "p.m."])
CONTINUING = frozenset([",", ";", ":"])
OPENING = frozenset(["“", "‘", "«", "„", "‚", "(", "[", "{", "``", "`", "¿", "¡"])
CLOSING = frozenset(["”", "»", ")", "]", "}", "''"])
DASHES = frozenset(["-", "--", "---", "----", "–", "—"])
# These open or close, which depends on those before.
AMBIGUOUS = frozenset(['"', "'", "’", "_", "*"])
QUOTES = frozenset(['"', "'", "“", "”", "‘", "’", "''", "``"])

# Characters of tokens that attach to the word before: "?!", "...", "%".
ENDING_CHARACTERS = frozenset(".,;:!?…%。，、；：！？")
# Second parts of contractions, as the tokenizer divides them; the others only after the words named.
CLITICS = frozenset(
    [mark + part for mark in "'’" for part in ("s", "m", "d", "ll", "re", "ve")] + ["n't", "n’t", "nt", "ll", "ve"]
)
CONTRACTED = frozenset(
    [("gon", "na"), ("got", "ta"), ("i", "m"), ("y'", "all"), ("y’", "all"), ("c'm", "on"), ("c’m", "on")]
)
# These attach to what follows, these to both sides.
PREFIXES = frozenset("$£€¥#")
JOINING = frozenset(["-", "‑", "--", "---", "—", "/"])
# Verbs after a quotation that ends with a mark of its own: "Why?" asked he.
_SPEAKING = "said says asked asks cried cries replied replies returned returns exclaimed exclaims answered answers"
SPEAKING = frozenset(_SPEAKING.split())
