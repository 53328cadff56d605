#!/usr/bin/env bash
# CoNLL-U: read and write the MISC column by three libraries.
#
# Versions: conllu 6.0.0, pyconll 3.3.1, udapi 0.5.2.
# Expected: MISC is `Key=Value|...`, free text after the first equals sign; what is read can be written again.
# Seen:     conllu cuts a value at its second equals sign. pyconll takes a value with commas as a set, and writes its
#           parts sorted. Both keep only the last of two equal keys. udapi keeps all three. Nothing is raised.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet conllu==6.0.0 pyconll==3.3.1 udapi==0.5.2
cat > "$folder/main.py" <<'PYTHON'
from importlib.metadata import version

import conllu
import pyconll
from udapi.core.document import Document

MISC = "Gloss=two, one|K=1|K=2|Link=a=b"
TEXT = f"# sent_id = 1\n1\tsun\tsun\tNOUN\tNN\t_\t0\troot\t_\t{MISC}\n\n"


def misc(text):
    """Return the tenth column of the only word."""
    return text.split("0\troot\t_\t")[1].split("\n")[0]


document = Document()
document.from_conllu_string(TEXT)
seen = {
    "conllu": misc(conllu.parse(TEXT)[0].serialize()),
    "pyconll": misc(pyconll.load_from_string(TEXT)[0].conll()),
    "udapi": misc(document.to_conllu_string()),
}
print("versions", *(f"{name} {version(name)}" for name in seen))
print("expected", MISC)
assert seen["udapi"] == MISC, seen
assert seen["conllu"] == "Gloss=two, one|K=2|Link=a", seen
assert seen["pyconll"] == "Gloss= one,two|K=2|Link=a=b", seen
print("seen:", seen)
PYTHON
"$folder/venv/bin/python" "$folder/main.py"
