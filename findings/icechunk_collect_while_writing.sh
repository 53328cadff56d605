#!/usr/bin/env bash
# Icechunk: collect garbage while a session has written chunks that are not committed.
#
# Versions: icechunk 1.1.21, zarr 3.1.6.
# Expected: the commit of the session fails, or writes its chunks again: they are in no snapshot, so a collection
#           removes them.
# Seen:     the commit succeeds. Reading the array from it raises that an object is not found, on every branch that
#           has it; the repository does not know it before.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet icechunk==1.1.21 zarr==3.1.6 numpy==2.4.6
cat > "$folder/main.py" <<'PYTHON'
import sys
from datetime import UTC, datetime, timedelta
from importlib.metadata import version

import icechunk
import numpy as np
import zarr

repository = icechunk.Repository.create(icechunk.local_filesystem_storage(sys.argv[1]))
session = repository.writable_session("main")
settings = {"shape": (4000,), "chunks": (1000,), "dtype": "int64", "fill_value": 0, "compressors": None}
zarr.create_array(session.store, name="counts", **settings)
session.commit("zeros")

session = repository.writable_session("main")
zarr.open_array(session.store, path="counts")[:] = np.arange(1, 4001)
collected = repository.garbage_collect(datetime.now(UTC) + timedelta(seconds=1))
commit = session.commit("counted")
try:
    zarr.open_array(repository.readonly_session("main").store, path="counts", mode="r")[:]
    raise SystemExit("changed: the commit can be read")
except icechunk.IcechunkError as error:
    raised = "not found" in str(error)

print("versions", *(f"{name} {version(name)}" for name in ("icechunk", "zarr")))
print("expected an error of the commit")
assert collected.chunks_deleted == 4, collected
assert commit == repository.lookup_branch("main")
assert raised
print(f"seen: {collected.chunks_deleted} chunks collected, the commit succeeded, reading it: object not found")
PYTHON
"$folder/venv/bin/python" "$folder/main.py" "$folder/repository"
