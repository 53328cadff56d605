#!/usr/bin/env bash
# spaCy and NLTK: divide English words that look like contractions without their apostrophe.
#
# Versions: spacy 3.8.18, nltk 3.10.4.
# Expected: "wed" and "id" are words of the dictionary, and one token each. spaCy leaves "well", "shell" and "ill"
#           whole, after all.
# Seen:     spaCy divides them in any sentence: "They wed" has the tokens "we" and "d", of which a tagger makes a
#           pronoun and an auxiliary verb. NLTK keeps them. Counts of the two are of different words.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet spacy==3.8.18 nltk==3.10.4
cat > "$folder/main.py" <<'PYTHON'
import nltk
import spacy
from nltk.tokenize import TreebankWordTokenizer

SENTENCES = ["They wed in May", "Wed night the id met the ego", "All is well"]
blank, treebank = spacy.blank("en"), TreebankWordTokenizer()
divided = {}
for sentence in SENTENCES:
    words = [token.text for token in blank(sentence)]
    assert treebank.tokenize(sentence) == sentence.split(), sentence
    if words != sentence.split():
        divided[sentence] = [word for word in words if word not in sentence.split()]
print(f"versions spacy {spacy.__version__}, nltk {nltk.__version__}")
print("expected the words between spaces from both")
assert divided == {
    "They wed in May": ["we", "d"],
    "Wed night the id met the ego": ["We", "d", "i", "d"],
}, divided
print("seen: nltk keeps all words; spacy makes", divided)
PYTHON
"$folder/venv/bin/python" "$folder/main.py"
