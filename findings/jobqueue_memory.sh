#!/usr/bin/env bash
# dask-jobqueue: ask for memory by `memory`.
#
# Versions: dask-jobqueue 0.9.0, dask and distributed 2026.8.0.
# Expected: a job requests the memory that its workers may use; 16 is a number of gigabytes or bytes, or is refused.
# Seen:     SGE jobs request none, though workers are told that they may use it: the job runs with the queue's
#           default and is ended by the scheduler when it takes more. SLURM and PBS requests have it. `memory="16"`
#           and `memory=16` are a TypeError of string formatting that does not name the option.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet dask-jobqueue==0.9.0 dask==2026.8.0 distributed==2026.8.0
cat > "$folder/main.py" <<'PYTHON'
import re
from importlib.metadata import version

from dask_jobqueue import PBSCluster, SGECluster, SLURMCluster


def script(cluster, memory):
    """Return the script of a job; none is submitted."""
    with cluster(cores=4, memory=memory, scheduler_options={"dashboard_address": ":0"}) as made:
        return made.job_script()


def request(text):
    """Return what the job requests of memory."""
    return re.findall(r"^#.*\bmem\w*=(\w+)|^#.*-l .*(?:vmem|vf|mem_free).*$", text, re.M)


if __name__ == "__main__":
    print(f"versions dask-jobqueue {version('dask-jobqueue')}, distributed {version('distributed')}")
    print("expected a request of 16 GB in each script")
    texts = {each.__name__: script(each, "16GB") for each in (SGECluster, SLURMCluster, PBSCluster)}
    requests = {name: request(text) for name, text in texts.items()}
    limits = {re.search(r"--memory-limit (\S+)", text)[1] for text in texts.values()}
    errors = set()
    for memory in ("16", 16):
        try:
            script(SLURMCluster, memory)
        except TypeError as error:
            errors.add(str(error))
    assert requests == {"SGECluster": [], "SLURMCluster": ["15G"], "PBSCluster": ["15GB"]}, requests
    assert limits == {"3.73GiB"}, limits
    assert errors == {"not all arguments converted during string formatting"}, errors
    print(f"seen: requests {requests}, limit of each of four workers {limits}; without a unit {errors}")
PYTHON
timeout 120 "$folder/venv/bin/python" "$folder/main.py"
