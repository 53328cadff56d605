#!/usr/bin/env bash
# ARPA: prune a model with kaldingram.
#
# Versions: kaldingram 0.1.2.
# Expected: the pruned file has the numbers of its own n-grams at its head, and any reader takes it.
# Seen:     an order of which all n-grams are pruned keeps its old number in the head, though its section is empty.
#           KenLM refuses such a file, as it reads on into the next section.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet kaldingram==0.1.2
cat > "$folder/main.py" <<'PYTHON'
import os
import re
import subprocess
import sys
from importlib.metadata import version

os.chdir(sys.argv[1])
tool = os.path.join(os.path.dirname(sys.executable), "kaldingram")
with open("text", "w") as file:
    file.write("the sun rose over the sea\nthe moon rose over the hill\na sea saw the sun\n")


def run(*arguments):
    subprocess.run([tool, *arguments, "--verbose", "5"], check=True, capture_output=True)


def numbers(name):
    """Return the bigrams and trigrams that a file says it has, and those that it has."""
    with open(name) as file:
        text = file.read()
    said = [int(number) for number in re.findall(r"^ngram [23]=(\d+)", text, re.M)]
    sections = [re.search(rf"\\{order}-grams:\n(.*?)(?:\n\\|\Z)", text, re.S)[1] for order in (2, 3)]
    return said, [len(section.split("\n")) if section.strip() else 0 for section in map(str.strip, sections)]


run("train", "--ngram-order", "3", "--text", "text", "--lm", "whole.arpa")
run("prune", "--threshold", "100", "--lm", "whole.arpa", "--write-lm", "pruned.arpa")
whole, pruned = numbers("whole.arpa"), numbers("pruned.arpa")

print("versions kaldingram", version("kaldingram"))
print("expected a head with 0 bigrams and 0 trigrams")
assert whole[0] == whole[1] and min(whole[0]) > 0, whole
assert pruned[0] == whole[0] and pruned[1] == [0, 0], pruned
print(f"seen: the head says {pruned[0]} bigrams and trigrams, the file has {pruned[1]}")
PYTHON
timeout 120 "$folder/venv/bin/python" "$folder/main.py" "$folder"
