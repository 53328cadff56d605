#!/usr/bin/env bash
# numba: change a function or a constant that a cached function takes from another module.
#
# Versions: numba 0.68.1.
# Expected: code is compiled again where the source of what it calls has changed.
# Seen:     only the file of the cached function itself is looked at. A caller in another file goes on with the old
#           function and the old constant, in new processes, too; the changed function called directly is new.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet numba==0.68.1 numpy==2.4.6
cat > "$folder/main.py" <<'PYTHON'
import os
import subprocess
import sys

import numba

os.chdir(sys.argv[1])
CALLER = "import numba\nfrom inner import STEP, add\n\n\n@numba.njit(cache=True)\ndef call(x):\n    return add(x) + STEP\n"
INNER = "import numba\n\nSTEP = {step}\n\n\n@numba.njit\ndef add(x):\n    return x + {step}\n"


def write(name, text):
    with open(name, "w") as file:
        file.write(text)


def called():
    """Return what the caller and the inner function give for 0 in a new process."""
    command = "import caller, inner; print(caller.call(0), inner.add(0))"
    return subprocess.run([sys.executable, "-c", command], check=True, capture_output=True, text=True).stdout.split()


write("caller.py", CALLER)
write("inner.py", INNER.format(step=1))
before = called()
write("inner.py", INNER.format(step=1000))
after = called()
print("versions numba", numba.__version__)
print("expected 2000 and 1000 after the change")
assert before == ["2", "1"], before
assert after == ["2", "1000"], after
print(f"seen: the caller gives {after[0]}, the function that it calls {after[1]}")
PYTHON
"$folder/venv/bin/python" "$folder/main.py" "$folder"
