#!/usr/bin/env bash
# lm-evaluation-harness: count the words for a perplexity by words.
#
# Versions: lm_eval 0.4.13.
# Expected: a text of two words has two words, with or without white space around it.
# Seen:     the count is of what is between white space, with the empty texts before the first and after the last: a
#           final line ending is one word more, and one before the text another. Perplexities by words of short
#           documents are too low by that, those of a collection depend on how documents end.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet lm_eval==0.4.13
cat > "$folder/main.py" <<'PYTHON'
import math
from importlib.metadata import version

from lm_eval.api.task import PerplexityTask

TEXTS = ["two words", "two words\n", "\ntwo words\n", ""]
counted = {text: PerplexityTask.count_words(text) for text in TEXTS}
perplexity = {text: round(math.exp(10 / counted[text]), 2) for text in TEXTS[:3]}
print("versions lm_eval", version("lm_eval"))
print("expected 2, 2, 2 and 0")
assert list(counted.values()) == [2, 3, 4, 1], counted
print(f"seen: {counted}; of a log likelihood of -10 perplexities are {perplexity}")
PYTHON
"$folder/venv/bin/python" "$folder/main.py"
