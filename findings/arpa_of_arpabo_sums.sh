#!/usr/bin/env bash
# ARPA: add up the probabilities after a word in files of arpabo.
#
# Versions: arpabo 0.3.0, pocketsphinx 5.1.1.
# Expected: the probabilities of all words after any context sum to 1, as in files of other writers.
# Seen:     by each of its five methods the sum after some word is more than 1.5: weights of back-off are 0 where
#           they are not written otherwise. The sums are of pocketsphinx, which reads these files.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet arpabo==0.3.0 pocketsphinx==5.1.1
cat > "$folder/main.py" <<'PYTHON'
import os
import re
import subprocess
import sys
from importlib.metadata import version

from pocketsphinx import LogMath, NGramModel

os.chdir(sys.argv[1])
tool = os.path.join(os.path.dirname(sys.executable), "arpabo")
logarithms = LogMath()
with open("text", "w") as file:
    file.write("the sun rose over the sea\nthe moon rose over the hill\na sea saw the sun\nthe end\n")


def largest_sum(method):
    """Return the largest sum of the probabilities of all words after a context of one word."""
    subprocess.run([tool, "text", "-m", "2", "-s", method, "-o", "model.arpa"], check=True, capture_output=True)
    model = NGramModel.readfile("model.arpa")
    with open("model.arpa") as file:
        section = re.search(r"1-grams:\n(.*?)\n\n", file.read(), re.S)[1]
    words = [line.split()[1] for line in section.splitlines()]
    ends = [word for word in words if word != "<s>"]
    return round(max(sum(10 ** logarithms.log_to_log10(model.prob([word, before])) for word in ends) for before in words), 2)


sums = {method: largest_sum(method) for method in ("auto", "fixed", "mle", "good_turing", "kneser_ney")}
print("versions", *(f"{name} {version(name)}" for name in ("arpabo", "pocketsphinx")))
print("expected sums of 1")
assert min(sums.values()) > 1.5, sums
print(f"seen: largest sums after a word {sums}")
PYTHON
timeout 120 "$folder/venv/bin/python" "$folder/main.py" "$folder"
