#!/usr/bin/env bash
# xarray and Zarr: open counts that another program wrote with a fill value of 0.
#
# Versions: xarray 2026.9.0, zarr 3.1.6.
# Expected: the integers that are stored; a fill value is what chunks that were never written have.
# Seen:     of Zarr format 2, xarray takes the fill value as missing: each count of 0 is NaN and left out of means,
#           and all are float64, which changes those beyond 2**53. Of format 3 they are as stored. Zarr writes a fill
#           value of 0 by default.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet xarray==2026.9.0 zarr==3.1.6 numpy==2.4.6
cat > "$folder/main.py" <<'PYTHON'
import sys

import numpy as np
import xarray
import zarr

COUNTS = [0, 0, 2, 2**53 + 1]
read = {}
for version in (2, 3):
    place = f"{sys.argv[1]}/{version}"
    group = zarr.open_group(place, mode="w", zarr_format=version)
    names = {"dimension_names": ("word",)} if version == 3 else {}
    array = group.create_array("counts", shape=(4,), chunks=(2,), dtype="int64", **names)
    if version == 2:
        array.attrs["_ARRAY_DIMENSIONS"] = ["word"]
    array[:] = COUNTS
    assert array.fill_value == 0
    read[version] = xarray.open_zarr(place, consolidated=False)["counts"]

print(f"versions xarray {xarray.__version__}, zarr {zarr.__version__}")
print("expected", COUNTS)
assert read[3].values.tolist() == COUNTS, read[3].values
assert read[2].dtype == np.float64
assert np.isnan(read[2].values[:2]).all()
assert int(read[2].values[3]) == 2**53, read[2].values
means = {version: float(array[:3].mean()) for version, array in read.items()}
assert means == {2: 2.0, 3: 2 / 3}, means
print(f"seen: format 2 is {read[2].values.tolist()}, means of the first three {means}")
PYTHON
"$folder/venv/bin/python" "$folder/main.py" "$folder"
