#!/usr/bin/env bash
# Icechunk: commit with the basic conflict solver.
#
# Versions: icechunk 1.1.21, zarr 3.1.6.
# Expected: `commit(rebase_with=BasicConflictSolver())` solves what can be solved and raises where both commits
#           changed a chunk, as without it.
# Seen:     by default it keeps the chunk of the later commit as a whole, so what the first commit wrote elsewhere in
#           that chunk is gone from the branch. Counts that two writers add to one chunk lose one of them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet icechunk==1.1.21 zarr==3.1.6
cat > "$folder/main.py" <<'PYTHON'
import sys
from importlib.metadata import version

import icechunk
import zarr

repository = icechunk.Repository.create(icechunk.local_filesystem_storage(sys.argv[1]))
session = repository.writable_session("main")
zarr.create_array(session.store, name="counts", shape=(8,), chunks=(4,), dtype="int64", fill_value=0)
start = session.commit("zeros")


def counted(**options):
    """Return the counts after two sessions of one commit have counted, and the error of the second."""
    repository.reset_branch("main", start)
    first, second = (repository.writable_session("main") for _ in range(2))
    for session, place in ((first, 0), (second, 3)):
        array = zarr.open_array(session.store, path="counts")
        array[place] = array[place] + 1
    first.commit("first")
    error = None
    try:
        second.commit("second", **options)
    except icechunk.ConflictError as conflict:
        error = type(conflict).__name__
    return zarr.open_array(repository.readonly_session("main").store, path="counts", mode="r")[:].tolist(), error


plain = counted()
solved = counted(rebase_with=icechunk.BasicConflictSolver())
print("versions", *(f"{name} {version(name)}" for name in ("icechunk", "zarr")))
print("expected an error both times, or counts [1, 0, 0, 1, 0, 0, 0, 0] with the solver")
assert plain == ([1, 0, 0, 0, 0, 0, 0, 0], "ConflictError"), plain
assert solved == ([0, 0, 0, 1, 0, 0, 0, 0], None), solved
print(f"seen: {plain[1]} without the solver; with it counts {solved[0]}, and no error")
PYTHON
"$folder/venv/bin/python" "$folder/main.py" "$folder/repository"
