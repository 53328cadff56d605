#!/usr/bin/env bash
# xarray: append larger integers to a Zarr store.
#
# Versions: xarray 2026.9.0, zarr 3.1.6.
# Expected: a ValueError, as for strings that are longer than those of the store ("Mismatched dtypes"), or wider
#           integers.
# Seen:     counts are cast to the type of the store and wrap around: 300 becomes 44 in a store of int8. Nothing is
#           raised or warned of that names it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet xarray==2026.9.0 zarr==3.1.6 numpy==2.4.6
cat > "$folder/main.py" <<'PYTHON'
import sys
import warnings

import numpy as np
import xarray
import zarr

warnings.simplefilter("ignore")


def dataset(values):
    return xarray.Dataset({"counts": ("word", values)})


place = f"{sys.argv[1]}/counts"
dataset(np.array([1, 2], "int8")).to_zarr(place)
dataset(np.array([300, 400], "int64")).to_zarr(place, append_dim="word")
read = xarray.open_zarr(place)["counts"].values.tolist()

words = f"{sys.argv[1]}/words"
dataset(np.array(["sun", "sea"])).to_zarr(words)
try:
    dataset(np.array(["longer", "word"])).to_zarr(words, append_dim="word")
    raise SystemExit("changed: longer strings are appended")
except ValueError as error:
    refused = str(error).split(" for ")[0]

print(f"versions xarray {xarray.__version__}, zarr {zarr.__version__}")
print("expected [1, 2, 300, 400] or an error")
assert read == [1, 2, 44, -112], read
assert refused == "Mismatched dtypes", refused
print(f"seen: {read} and no error; for longer strings: {refused}")
PYTHON
"$folder/venv/bin/python" "$folder/main.py" "$folder"
