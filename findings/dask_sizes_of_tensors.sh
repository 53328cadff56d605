#!/usr/bin/env bash
# Dask: sizes, tokens and transfers of torch tensors and SciPy's sparse arrays.
#
# Versions: dask and distributed 2026.8.0, torch 2.13.0, scipy 1.17.1, numpy 2.4.6.
# Expected: `sizeof` is about the bytes of the values, on which the choice of a worker, spilling and limits of memory
#           rest; equal values have equal tokens; what a task returns can be transferred.
# Seen:     any tensor is 80 bytes and a sparse array 56, where SciPy's older matrices are right. Two equal tensors
#           have different tokens, as an address is part of them. Tensors of bfloat16, sparse ones and conjugates
#           cannot be serialised, so a task that returns one succeeds and gathering it fails.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet dask==2026.8.0 distributed==2026.8.0 torch==2.13.0 scipy==1.17.1 numpy==2.4.6
cat > "$folder/main.py" <<'PYTHON'
import logging

import dask
import distributed
import numpy as np
import scipy
import scipy.sparse
import torch
from dask.sizeof import sizeof
from dask.tokenize import tokenize
from distributed.protocol import deserialize, serialize

logging.disable(logging.CRITICAL)
dense = np.ones((1000, 1000))
sizes = {
    "tensor": (sizeof(torch.from_numpy(dense)), dense.nbytes),
    "csr_array": (sizeof(scipy.sparse.csr_array(dense)), scipy.sparse.csr_array(dense).data.nbytes),
    "csr_matrix": (sizeof(scipy.sparse.csr_matrix(dense)), scipy.sparse.csr_matrix(dense).data.nbytes),
}
one, other = torch.ones(3), torch.ones(3)
equal = tokenize(one) == tokenize(other), tokenize(one.numpy()) == tokenize(other.numpy())
refused = []
for name, tensor in {
    "float32": torch.ones(3),
    "bfloat16": torch.ones(3, dtype=torch.bfloat16),
    "sparse": torch.eye(3).to_sparse(),
    "conjugate": torch.ones(3, dtype=torch.complex64).conj(),
}.items():
    try:
        deserialize(*serialize(tensor))
    except TypeError:
        refused.append(name)
print(f"versions distributed {distributed.__version__}, torch {torch.__version__}, scipy {scipy.__version__}")
print("expected sizes of 8000000 bytes and more, equal tokens, four tensors serialised")
assert (sizes["tensor"][0], sizes["csr_array"][0]) == (80, 56), sizes
assert sizes["csr_matrix"][0] > sizes["csr_matrix"][1], sizes
assert equal == (False, True), equal
assert refused == ["bfloat16", "sparse", "conjugate"], refused
print(f"seen: sizeof and bytes {sizes}; equal tokens of tensors {equal[0]}, of arrays {equal[1]}; not serialised {refused}")
PYTHON
timeout 300 "$folder/venv/bin/python" "$folder/main.py"
