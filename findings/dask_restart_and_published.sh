#!/usr/bin/env bash
# Dask: restart the workers of a cluster on which a future is published.
#
# Versions: dask and distributed 2026.8.0.
# Expected: `client.restart()` forgets published datasets together with all tasks, or the scheduler says of every lost
#           key the same.
# Seen:     the dataset stays listed, and its future is pending, although no task will compute it. Asked for the lost
#           key, the scheduler answers an empty list of holders but raises a KeyError for its size, so that a loop over
#           all datasets ends at this one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet dask==2026.8.0 distributed==2026.8.0
cat > "$folder/main.py" <<'PYTHON'
import logging

import dask
import distributed

if __name__ == "__main__":
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    with distributed.Client(n_workers=1, threads_per_worker=1, dashboard_address=":0") as client:
        future = client.submit(str, 7)
        future.result()
        client.publish_dataset(future, name="seven")
        client.restart(timeout=60)
        listed = client.list_datasets()
        status = client.get_dataset("seven").status
        holders = client.sync(client.scheduler.who_has, keys=[future.key])
        try:
            size = client.sync(client.scheduler.nbytes, keys=[future.key], summary=False)
        except KeyError as error:
            size = f"KeyError({error})"
    print(f"versions dask {dask.__version__}, distributed {distributed.__version__}")
    print("expected one answer for a key that is lost, and no dataset of it")
    assert listed == ("seven",), listed
    assert status == "pending", status
    assert holders == {future.key: ()} or holders == {future.key: []}, holders
    assert isinstance(size, str) and size.startswith("KeyError"), size
    print(f"seen: datasets {listed}, its future {status}, holders {[*holders.values()][0]}, size {size[:8]}")
PYTHON
timeout 180 "$folder/venv/bin/python" "$folder/main.py"
