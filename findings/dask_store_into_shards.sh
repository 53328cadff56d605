#!/usr/bin/env bash
# Dask and Zarr: store an array into a sharded one, in the chunks that it names.
#
# Versions: dask 2026.8.0, zarr 3.1.6.
# Expected: blocks that are aligned with `array.chunks` may be stored at the same time without a lock, as for any
#           Zarr array.
# Seen:     `chunks` are those inside a shard, which is one object: each write reads it, changes a part and writes
#           all of it. With `store(lock=False)` many values are lost and nothing is raised. With `lock=True`, which
#           is the default, and with `to_zarr`, all of them are there.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet dask==2026.8.0 zarr==3.1.6 numpy==2.4.6
cat > "$folder/main.py" <<'PYTHON'
import sys

import dask
import dask.array as da
import zarr


def stored(name, **options):
    """Return the sum of a sharded array after ones were stored, one in each inner chunk."""
    place = f"{sys.argv[1]}/{name}"
    target = zarr.create_array(place, shape=(64,), chunks=(1,), shards=(64,), dtype="int32", fill_value=0)
    da.store(da.ones(64, chunks=target.chunks, dtype="int32"), target, **options)
    return int(target[:].sum())


with dask.config.set(scheduler="threads", num_workers=8):
    free = [stored(f"free{number}", lock=False) for number in range(5)]
    locked = stored("locked", lock=True)
print(f"versions dask {dask.__version__}, zarr {zarr.__version__}")
print("expected a sum of 64 each time")
assert min(free) < 64, free
assert locked == 64, locked
print(f"seen: less without a lock in {sum(each < 64 for each in free)} of 5 times, {locked} with one; no error")
PYTHON
"$folder/venv/bin/python" "$folder/main.py" "$folder"
