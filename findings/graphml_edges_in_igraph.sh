#!/usr/bin/env bash
# NetworkX and igraph: read a multigraph that NetworkX wrote as GraphML.
#
# Versions: networkx 3.6.1, igraph 1.0.0, numpy 2.4.6.
# Expected: NetworkX writes the key of an edge as its `id`, and igraph has it as the attribute `id` of the edge.
# Seen:     in igraph the attribute `id` of the edges has the ids of vertices: of the vertex with the number of the
#           edge. Where an attribute has integers in some edges and other numbers in others, NetworkX declares it
#           twice under one name, and igraph refuses the file.
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
edges = [("sun", "moon", 70), ("sun", "moon", 71), ("moon", "sea", 72)]
graph = networkx.MultiDiGraph()
for source, target, key in edges:
    graph.add_edge(source, target, key=key)
networkx.write_graphml(graph, "keys.graphml")
written = [key for _, _, key in networkx.read_graphml("keys.graphml", force_multigraph=True).edges(keys=True)]
read = igraph.Graph.Read_GraphML("keys.graphml")

mixed = networkx.DiGraph([("sun", "moon", {"weight": 1}), ("moon", "sea", {"weight": 0.5})])
networkx.write_graphml(mixed, "mixed.graphml")
try:
    igraph.Graph.Read_GraphML("mixed.graphml")
    raise SystemExit("changed: igraph reads an attribute of two types")
except igraph.InternalError as error:
    refused = "Duplicate attribute name" in str(error)

print(f"versions igraph {igraph.__version__}, networkx {networkx.__version__}")
print(f"expected ids of edges {[key for *_, key in edges]}, and weights 1 and 0.5")
assert written == [70, 71, 72], written
assert read.vs["id"] == ["sun", "moon", "sea"], read.vs["id"]
assert read.es["id"] == ["sun", "moon", "sea"], read.es["id"]
assert refused
print(f"seen: ids of edges {read.es['id']}; weights of two types are refused: duplicate attribute name")
PYTHON
"$folder/venv/bin/python" "$folder/main.py" "$folder"
