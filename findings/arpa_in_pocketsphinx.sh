#!/usr/bin/env bash
# ARPA: read one file with pocketsphinx and with the package arpa.
#
# Versions: pocketsphinx 5.1.1, arpa 0.1.0b4.
# Expected: both give an unknown word the probability of <unk>, and a trigram the one that is written; a file that
#           lacks n-grams is refused by both.
# Seen:     pocketsphinx has an unknown word only where it is written <UNK>: with <unk> its log probability is
#           -23314, with no error. In the package arpa it is the other way round, and a KeyError. A trigram whose
#           last two words are not listed as a bigram is left out by pocketsphinx without an error, which then backs
#           off. KenLM refuses such a file.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pocketsphinx==5.1.1 arpa==0.1.0b4
cat > "$folder/main.py" <<'PYTHON'
import os
import sys
from importlib.metadata import version

import arpa
from pocketsphinx import LogMath, NGramModel

os.chdir(sys.argv[1])
logarithms = LogMath()
WORDS = ["-99\t<s>\t-0.3", "-1.0\t</s>", "-0.5\tsun\t-0.3", "-0.5\tsea\t-0.3"]


def write(*orders):
    """Write a file of lines of n-grams."""
    text = "\\data\\\n" + "".join(f"ngram {order}={len(lines)}\n" for order, lines in enumerate(orders, 1))
    for order, lines in enumerate(orders, 1):
        text += f"\n\\{order}-grams:\n" + "".join(f"{line}\n" for line in lines)
    with open("words.arpa", "w") as file:
        file.write(text + "\n\\end\\\n")


def read(words):
    """Return the log probability (base 10) of the last word after the others in pocketsphinx and in arpa."""
    found = logarithms.log_to_log10(NGramModel.readfile("words.arpa").prob(words.split()[::-1]))
    try:
        other = arpa.loadf("words.arpa")[0].log_p(words)
    except KeyError:
        other = "KeyError"
    return round(found, 1), other


unknown = {}
for mark in ("<unk>", "<UNK>"):
    write([f"-2.0\t{mark}\t0", *WORDS], ["-0.4\tsun sea"])
    unknown[mark] = read("moon")
write(["-2.0\t<unk>\t0", *WORDS], ["-0.4\tsun sun\t-0.1", "-0.6\tsun sea"], ["-0.2\tsun sun sea"])
whole = read("sun sun sea")
write(["-2.0\t<unk>\t0", *WORDS], ["-0.4\tsun sun\t-0.1"], ["-0.2\tsun sun sea"])
pruned = read("sun sun sea")
print("versions", *(f"{name} {version(name)}" for name in ("pocketsphinx", "arpa")))
print("expected -2.0 for the unknown word, and -0.2 for the trigram or an error")
assert unknown == {"<unk>": (-23314.8, -2.0), "<UNK>": (-2.0, "KeyError")}, unknown
assert whole == (-0.2, -0.2), whole
assert pruned == (-0.9, -0.2), pruned
print(f"seen: pocketsphinx and arpa give an unknown word {unknown}; a trigram {whole}, without its bigram {pruned}")
PYTHON
timeout 120 "$folder/venv/bin/python" "$folder/main.py" "$folder"
