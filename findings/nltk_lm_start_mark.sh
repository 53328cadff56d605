#!/usr/bin/env bash
# NLTK: train a language model with its padded pipeline.
#
# Versions: nltk 3.10.4.
# Expected: the words of a sentence and its end are predicted; the mark of its start is context alone, as in KenLM,
#           SRILM and ARPA files.
# Seen:     the mark is counted as a word that is predicted, also after itself. In short sentences it has more than a
#           quarter of the probability without context, and after <s> it is as probable as all first words together;
#           perplexities of NLTK cannot be compared with those of other tools. By Kneser-Ney the words after <s> sum
#           to more than 1. An unknown word has probability 0.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet nltk==3.10.4
cat > "$folder/main.py" <<'PYTHON'
import nltk
from nltk.lm import MLE, KneserNeyInterpolated, WittenBellInterpolated
from nltk.lm.preprocessing import padded_everygram_pipeline

SENTENCES = [["the", "sun", "rose"], ["the", "moon", "rose"], ["a", "sea", "saw"]]
seen = {}
for kind in (MLE, KneserNeyInterpolated, WittenBellInterpolated):
    grams, vocabulary = padded_everygram_pipeline(3, SENTENCES)
    model = kind(order=3)
    model.fit(grams, vocabulary)
    marks = [round(model.score("<s>", context), 3) for context in ((), ("<s>",))]
    words = round(sum(model.score(word, ["<s>"]) for word in model.vocab if word != "<s>"), 3)
    seen[kind.__name__] = *marks, words, model.score("stars")
print("versions nltk", nltk.__version__)
print("expected 0 for <s> in all contexts, 1 for all words together after <s>")
assert seen["MLE"][:3] == (0.286, 0.5, 0.5), seen
assert seen["WittenBellInterpolated"][:3] == (0.286, 0.429, 0.571), seen
assert seen["KneserNeyInterpolated"][2] == 1.037, seen
assert all(unknown == 0 for *_, unknown in seen.values()), seen
print("seen: <s> without context, <s> after <s>, all words after <s>, an unknown word:", seen)
PYTHON
"$folder/venv/bin/python" "$folder/main.py"
