#!/usr/bin/env bash
# Zarr: make an array shorter, and longer again.
#
# Versions: zarr 3.1.6.
# Expected: what is beyond the end is gone; elements that come back have the fill value, as in HDF5 and NumPy.
# Seen:     values that share a chunk with the last element are kept and come back, also behind values that were
#           appended in the meantime; those in chunks of their own are deleted.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet zarr==3.1.6 numpy==2.4.6
cat > "$folder/main.py" <<'PYTHON'
import numpy as np
import zarr
from zarr.storage import MemoryStore

array = zarr.create_array(MemoryStore(), shape=(10,), chunks=(4,), dtype="int32", fill_value=0)
array[:] = np.arange(1, 11)
array.resize((2,))
shrunk = array[:].tolist()
array.append(np.array([70], "int32"))
array.resize((10,))
grown = array[:].tolist()
print("versions zarr", zarr.__version__)
print("expected [1, 2, 70, 0, 0, 0, 0, 0, 0, 0]")
assert shrunk == [1, 2], shrunk
assert grown == [1, 2, 70, 4, 0, 0, 0, 0, 0, 0], grown
print(f"seen: {grown}; the 4 was cut off before 70 was appended")
PYTHON
"$folder/venv/bin/python" "$folder/main.py"
