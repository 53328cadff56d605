#!/usr/bin/env bash
# Icechunk: merge forks that wrote one chunk, one shard, or the same new end of an array.
#
# Versions: icechunk 1.1.21, zarr 3.1.6.
# Expected: two sessions that change one chunk conflict when the second commits, so two forks of one session that do
#           are refused by `Session.merge`, or at the commit after it.
# Seen:     no error. The fork that is named last replaces the whole chunk of the other, though they wrote different
#           elements of it. For a sharded array this is so for different inner chunks of a shard, too. Of two
#           appends of equal length, one is lost and the array is as long as after one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet icechunk==1.1.21 zarr==3.1.6
cat > "$folder/main.py" <<'PYTHON'
import pickle
import sys
from importlib.metadata import version

import icechunk
import numpy as np
import zarr

repository = icechunk.Repository.create(icechunk.local_filesystem_storage(sys.argv[1]))
session = repository.writable_session("main")
root = zarr.create_group(session.store)
for name, chunk, shard in (("plain", 4, None), ("sharded", 1, 4), ("grown", 4, None)):
    root.create_array(name, shape=(4,), chunks=(chunk,), shards=shard and (shard,), dtype="int32", fill_value=0)
session.commit("zeros")


def merged(name, first, second):
    """Return an array after the merge of two forks, which two functions change."""
    session = repository.writable_session("main")
    fork = session.fork()
    forks = []
    for change in (first, second):
        worker = pickle.loads(pickle.dumps(fork))
        change(zarr.open_array(worker.store, path=name))
        forks.append(worker)
    session.merge(*forks)
    return zarr.open_array(session.store, path=name, mode="r")[:].tolist()


def put(place, value):
    return lambda array: array.__setitem__(place, value)


def appended(value):
    return lambda array: array.append(np.full(4, value, "int32"))


first, second = (repository.writable_session("main") for _ in range(2))
zarr.open_array(first.store, path="plain")[0] = 1
zarr.open_array(second.store, path="plain")[3] = 2
first.commit("first")
try:
    second.commit("second")
    raise SystemExit("changed: two sessions that wrote one chunk do not conflict")
except icechunk.ConflictError:
    pass
repository.reset_branch("main", list(repository.ancestry(branch="main"))[1].id)

plain = merged("plain", put(0, 1), put(3, 2))
sharded = merged("sharded", put(0, 1), put(3, 2))
grown = merged("grown", appended(1), appended(2))
print("versions", *(f"{name} {version(name)}" for name in ("icechunk", "zarr")))
print("expected an error of merge or commit, or [1, 0, 0, 2]; two sessions conflict")
assert plain == [0, 0, 0, 2], plain
assert sharded == [0, 0, 0, 2], sharded
assert grown == [0, 0, 0, 0, 2, 2, 2, 2], grown
print(f"seen: no error; one chunk {plain}, one shard {sharded}, two appends {grown}")
PYTHON
"$folder/venv/bin/python" "$folder/main.py" "$folder/repository"
