#!/usr/bin/env bash
# Zstandard: decompress a file of two frames, as parallel compressors and `cat a.zst b.zst` make it.
#
# Versions: zstandard 0.25.0, pyarrow 26.0.1.
# Expected: all content, as `gzip.decompress` gives of a file of two members, and as `zstd -d` does.
# Seen:     `zstandard.decompress`, `ZstdDecompressor.decompress` and `decompressobj` give the first frame alone and
#           raise nothing. `zstandard.open`, `stream_reader` and pyarrow give both.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet zstandard==0.25.0 pyarrow==26.0.1
cat > "$folder/main.py" <<'PYTHON'
import gzip
import io

import pyarrow
import zstandard

parts = b"first\n", b"second\n"
frames = b"".join(map(zstandard.compress, parts))
whole = b"".join(parts)
decompressor = zstandard.ZstdDecompressor()
seen = {
    "decompress": zstandard.decompress(frames),
    "ZstdDecompressor.decompress": decompressor.decompress(frames),
    "decompressobj": decompressor.decompressobj().decompress(frames),
}
others = {
    "open": zstandard.open(io.BytesIO(frames), "rb").read(),
    "stream_reader": decompressor.stream_reader(io.BytesIO(frames)).read(),
    "pyarrow": pyarrow.input_stream(io.BytesIO(frames), compression="zstd").read(),
    "gzip": gzip.decompress(b"".join(map(gzip.compress, parts))),
}
print(f"versions zstandard {zstandard.__version__}, pyarrow {pyarrow.__version__}")
print("expected", whole)
assert set(others.values()) == {whole}, others
assert set(seen.values()) == {parts[0]}, seen
print("seen:", ", ".join(f"{name} {value}" for name, value in seen.items()), "and no error")
PYTHON
"$folder/venv/bin/python" "$folder/main.py"
