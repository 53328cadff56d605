#!/usr/bin/env bash
# CoNLL-U: read a treebank whose last blank line is missing, as `head` leaves it.
#
# Versions: udapi 0.5.2, conllu 6.0.0, pyconll 3.3.1.
# Expected: the last sentence is read, or an error names the line.
# Seen:     conllu and pyconll read it. udapi ends with "IndexError: string index out of range", from a string as from
#           a file, and the sentences before it are lost, too.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet conllu==6.0.0 pyconll==3.3.1 udapi==0.5.2
cat > "$folder/main.py" <<'PYTHON'
import os
import sys
from importlib.metadata import version

import conllu
import pyconll
from udapi.core.document import Document

os.chdir(sys.argv[1])
SENTENCE = "# sent_id = 1\n# text = Go\n1\tGo\tgo\tVERB\tVB\t_\t0\troot\t_\t_\n"
TEXT = SENTENCE + "\n" + SENTENCE.replace("sent_id = 1", "sent_id = 2")
for name, text in (("whole", TEXT + "\n"), ("cut", TEXT)):
    with open(f"{name}.conllu", "w") as file:
        file.write(text)
with open("cut.conllu") as file:
    others = len(conllu.parse(file.read())), len(pyconll.load_from_file("cut.conllu"))
whole = len(Document("whole.conllu").bundles)
try:
    Document("cut.conllu")
    raise SystemExit("changed: udapi reads the last sentence")
except IndexError as error:
    raised = repr(error)

print("versions", *(f"{name} {version(name)}" for name in ("udapi", "conllu", "pyconll")))
print("expected 2 sentences from each")
assert (others, whole) == ((2, 2), 2), (others, whole)
assert raised == "IndexError('string index out of range')", raised
print(f"seen: conllu and pyconll {others}; udapi {raised}, and {whole} sentences with the blank line")
PYTHON
"$folder/venv/bin/python" "$folder/main.py" "$folder"
