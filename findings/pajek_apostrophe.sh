#!/usr/bin/env bash
# NetworkX: write a graph of words as Pajek and read it.
#
# Versions: networkx 3.6.1.
# Expected: `read_pajek` reads what `write_pajek` has written, with the strengths of edges.
# Seen:     a label with an apostrophe is written without quotes, and reading it raises "No closing quotation". Of
#           two such words in one line, reading succeeds where their apostrophes pair: the label is then another
#           one. A number of an edge that is not called `weight` is left out with a warning, its weight is 1.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet networkx==3.6.1
cat > "$folder/main.py" <<'PYTHON'
import os
import sys
import warnings

import networkx

os.chdir(sys.argv[1])
warnings.simplefilter("ignore")


def again(*nodes, **numbers):
    """Return a graph of an edge between two words after a round trip."""
    networkx.write_pajek(networkx.DiGraph([(*nodes, numbers)]), "graph.net")
    return networkx.read_pajek("graph.net")


try:
    again("it's", "late", weight=3)
    raise SystemExit("changed: a label with an apostrophe is read")
except ValueError as error:
    refused = str(error)
paired = list(again("rock'n'roll", "late", weight=3).nodes)
((_, _, data),) = again("it", "late", strength=3).edges(data=True)

print("versions networkx", networkx.__version__)
print("expected the labels \"it's\" and \"rock'n'roll\", and a strength of 3")
assert refused == "No closing quotation", refused
assert paired == ["rocknroll", "late"], paired
assert data == {"weight": 1.0}, data
print(f"seen: {refused!r} for \"it's\"; \"rock'n'roll\" is read as {paired[0]!r}; an edge of strength 3 has {data}")
PYTHON
"$folder/venv/bin/python" "$folder/main.py" "$folder"
