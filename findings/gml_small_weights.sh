#!/usr/bin/env bash
# igraph and NetworkX: exchange small weights and large counts by GML.
#
# Versions: igraph 1.0.0, networkx 3.6.1, numpy 2.4.6.
# Expected: a number that one writes is the number that the other reads.
# Seen:     igraph writes 1e-07; NetworkX reads a weight of 1 and an attribute `e` of -7 without an error.
#           NetworkX writes 1.E-07, which igraph refuses to parse. Integers from 2**31 are written by NetworkX as
#           text, so a count is a string after NetworkX' own round trip.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet igraph==1.0.0 networkx==3.6.1 numpy==2.4.6
cat > "$folder/main.py" <<'PYTHON'
import os
import sys

import igraph
import networkx

os.chdir(sys.argv[1])
graph = igraph.Graph(2, [(0, 1)], directed=True)
graph.es["weight"] = [1e-07]
graph.write_gml("igraph.gml")
((_, _, read),) = networkx.read_gml("igraph.gml", label="id").edges(data=True)

networkx.write_gml(networkx.DiGraph([("a", "b", {"weight": 1e-07})]), "small.gml")
try:
    igraph.Graph.Read_GML("small.gml")
    raise SystemExit("changed: igraph reads the number of NetworkX")
except igraph.InternalError as error:
    refused = "syntax error" in str(error)

networkx.write_gml(networkx.DiGraph([("a", "b", {"low": 2**31 - 1, "high": 2**31})]), "large.gml")
((_, _, counts),) = networkx.read_gml("large.gml").edges(data=True)

print(f"versions igraph {igraph.__version__}, networkx {networkx.__version__}")
print("expected weight 1e-07 in both directions, and counts that are integers")
assert read == {"weight": 1, "e": -7}, read
assert refused
assert counts == {"low": 2147483647, "high": "2147483648"}, counts
print(f"seen: igraph's 1e-07 is {read} in NetworkX; NetworkX' 1.E-07 is refused by igraph; counts are {counts}")
PYTHON
"$folder/venv/bin/python" "$folder/main.py" "$folder"
