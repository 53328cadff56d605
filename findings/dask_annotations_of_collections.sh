#!/usr/bin/env bash
# Dask: annotate an array or a bag and compute it outside the context.
#
# Versions: dask and distributed 2026.8.0.
# Expected: `with dask.annotate(retries=3)` around the making of a collection annotates its tasks, as it does for
#           `dask.delayed`.
# Seen:     the graph has the annotations until it is computed: optimisation drops them, so that tasks of arrays and
#           bags have no retries, priorities or resources. Those of `delayed` keep them. With `compute` inside of the
#           context all of them have them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet dask==2026.8.0 distributed==2026.8.0 numpy==2.4.6
cat > "$folder/main.py" <<'PYTHON'
import dask
import dask.array as da
import dask.bag as db
import distributed


def annotated(client, value):
    """Return whether tasks of a computation have retries."""
    future = client.compute(value)
    future.result()
    tasks = list(client.cluster.scheduler.tasks.values())
    assert future.key in {task.key for task in tasks}
    return any((task.annotations or {}).get("retries") == 3 for task in tasks)


if __name__ == "__main__":
    with distributed.Client(processes=False, n_workers=1, dashboard_address=":0") as client:
        with dask.annotate(retries=3):
            values = {
                "array": da.ones(8, chunks=4) + 1,
                "bag": db.from_sequence([1, 2]).map(str),
                "delayed": dask.delayed(str)(1),
            }
        made = {name: any(layer.annotations for layer in value.__dask_graph__().layers.values()) for name, value in values.items() if name != "delayed"}
        outside = {name: annotated(client, value) for name, value in values.items()}
        with dask.annotate(retries=3):
            inside = annotated(client, values["array"].sum())
    print(f"versions dask {dask.__version__}, distributed {distributed.__version__}")
    print("expected retries in all three")
    assert made == {"array": True, "bag": True}, made
    assert outside == {"array": False, "bag": False, "delayed": True}, outside
    assert inside
    print(f"seen: tasks have retries {outside}; computed inside of the context an array has them, too")
PYTHON
timeout 120 "$folder/venv/bin/python" "$folder/main.py"
