#!/usr/bin/env bash
# tokenizers: train twice on one text.
#
# Versions: tokenizers 0.23.3.
# Expected: the same text and settings make the same tokenizer, as training a byte-level BPE does.
# Seen:     WordPiece has other ids each time, and other pieces where pairs are equally frequent, so that a model and
#           a tokenizer of two trainings do not fit, though both have the same size. A BPE with a prefix of
#           continuing pieces is the same case; one without has equal ids.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet tokenizers==0.23.3
cat > "$folder/main.py" <<'PYTHON'
import tokenizers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

TEXT = ["the sun rose over the sea and the moon over the hill", "she sells sea shells by the sea shore"] * 3
TRAINERS = {
    "WordPiece": (models.WordPiece, trainers.WordPieceTrainer, {}),
    "BPE with a prefix": (models.BPE, trainers.BpeTrainer, {"continuing_subword_prefix": "##"}),
    "BPE": (models.BPE, trainers.BpeTrainer, {}),
}


def trained(model, trainer, options):
    """Return the ids of the pieces after training."""
    tokenizer = Tokenizer(model())
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(TEXT, trainer(vocab_size=90, show_progress=False, **options))
    return tokenizer.get_vocab()


seen = {}
for name, settings in TRAINERS.items():
    results = [trained(*settings) for _ in range(12)]
    seen[name] = len({frozenset(ids.items()) for ids in results})
print("versions tokenizers", tokenizers.__version__)
print("expected 1 tokenizer of 12 trainings")
assert seen["BPE"] == 1, seen
assert seen["WordPiece"] > 1 and seen["BPE with a prefix"] > 1, seen
several = [name for name, count in seen.items() if count > 1]
print(f"seen: one table of ids for BPE, several for {several}")
PYTHON
"$folder/venv/bin/python" "$folder/main.py"
