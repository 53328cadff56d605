#!/usr/bin/env bash
# Zarr: set an attribute through an array that was opened before another one appended.
#
# Versions: zarr 3.1.6.
# Expected: setting an attribute changes attributes; a shape that another handle has written stays.
# Seen:     the whole metadata is written as the old handle knows it. The array is short again, what was appended
#           is no longer read, and attributes of others are gone. Nothing is raised.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet zarr==3.1.6
cat > "$folder/main.py" <<'PYTHON'
import sys

import numpy as np
import zarr

place = sys.argv[1]
zarr.create_array(place, shape=(4,), chunks=(4,), dtype="int32", fill_value=0)
old, new = zarr.open_array(place), zarr.open_array(place)
new.append(np.arange(1, 5, dtype="int32"))
new.attrs["appended by"] = "new"
before = zarr.open_array(place, mode="r")
assert before.shape == (8,) and before[:].sum() == 10

old.attrs["note"] = "old"
after = zarr.open_array(place, mode="r")
print("versions zarr", zarr.__version__)
print(f"expected shape {before.shape} and both attributes")
assert after.shape == (4,), after.shape
assert dict(after.attrs) == {"note": "old"}, dict(after.attrs)
assert after[:].sum() == 0
print(f"seen: shape {after.shape}, attributes {dict(after.attrs)}; the four values appended are not read")
PYTHON
"$folder/venv/bin/python" "$folder/main.py" "$folder/array"
