#!/usr/bin/env bash
# Dask and Zarr: store an array on workers into a Zarr array that is in memory.
#
# Versions: dask and distributed 2026.8.0, zarr 3.1.6.
# Expected: an error, as `Array.to_zarr` raises for such a store ("Cannot store into in memory Zarr Array using the
#           distributed scheduler"), or the values.
# Seen:     `dask.array.store` returns normally and the array holds zeros: each worker got a copy of the store.
#           This is so for `zarr.zeros`, for `MemoryStore`, and for an array opened by a URL of fsspec, "memory://".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet dask==2026.8.0 distributed==2026.8.0 zarr==3.1.6 fsspec==2026.9.0 numpy==2.4.6
cat > "$folder/main.py" <<'PYTHON'
import dask.array as da
import distributed
import zarr
from zarr.storage import MemoryStore


def targets():
    yield "zarr.zeros", zarr.zeros(8, chunks=(4,))
    settings = {"shape": (8,), "chunks": (4,), "dtype": "float64"}
    yield "MemoryStore", zarr.create_array(MemoryStore(), **settings)
    yield "memory://", zarr.open_array("memory://array", mode="w", **settings)


if __name__ == "__main__":
    print(f"versions distributed {distributed.__version__}, zarr {zarr.__version__}")
    print("expected a sum of 8.0, or an error")
    ones = da.ones(8, chunks=4)
    with distributed.Client(n_workers=1, threads_per_worker=1, processes=True, dashboard_address=None) as client:
        sums = {}
        for name, target in targets():
            da.store(ones, target, lock=False)
            sums[name] = float(target[:].sum())
        try:
            ones.to_zarr(zarr.zeros(8, chunks=(4,)))
            raise SystemExit("changed: to_zarr accepts an array in memory")
        except RuntimeError as error:
            refused = str(error)
    inside = zarr.zeros(8, chunks=(4,))
    da.store(ones, inside, lock=False)
    assert inside[:].sum() == 8, "threads of this process should store"
    assert set(sums.values()) == {0.0}, sums
    assert "in memory" in refused, refused
    print(f"seen: store returned, sums are {sums}; without workers it is 8.0")
PYTHON
timeout 120 "$folder/venv/bin/python" "$folder/main.py"
