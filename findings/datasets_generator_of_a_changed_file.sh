#!/usr/bin/env bash
# datasets: make a dataset again from a generator that reads a file.
#
# Versions: datasets 5.2.0.
# Expected: the rows that the generator yields now; `load_dataset` of a file sees that it has changed.
# Seen:     `Dataset.from_generator` returns the rows of the first time from its cache, as the code and the arguments
#           of the generator are the same; it is not called. `load_dataset` has the new rows.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet datasets==5.2.0
cat > "$folder/main.py" <<'PYTHON'
import os
import sys

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
import datasets

place, cache = f"{sys.argv[1]}/text.txt", f"{sys.argv[1]}/cache"


def rows(path):
    with open(path) as file:
        for line in file:
            yield {"text": line.rstrip()}


read = []
for text in ("the old text\n", "a newer\ntext\n"):
    with open(place, "w") as file:
        file.write(text)
    generated = datasets.Dataset.from_generator(rows, gen_kwargs={"path": place}, cache_dir=cache)
    loaded = datasets.load_dataset("text", data_files=place, split="train", cache_dir=cache)
    read.append((generated["text"][:], loaded["text"][:]))
print("versions datasets", datasets.__version__)
print("expected ['a newer', 'text'] from both the second time")
assert read[0] == (["the old text"], ["the old text"]), read
assert read[1] == (["the old text"], ["a newer", "text"]), read
print(f"seen: from_generator {read[1][0]}, load_dataset {read[1][1]}")
PYTHON
"$folder/venv/bin/python" "$folder/main.py" "$folder"
