"""A calibrated plan of a connected cluster trains the same network as any other division of the work."""

from __future__ import annotations

from pathlib import Path

import pytest

import giaann_dask as gd
from giaann_dask.api.planning import choose_options
from giaann_dask.data import sample_text
from giaann_dask.planning.calibration import kept_rates
from giaann_dask.planning.hardware import Rates


@pytest.mark.cluster
def test_a_calibrated_plan_trains_the_same_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # Rates are found with few tasks, trainings and prompts as well, though not exactly.
    few = {"planning.calibration._TASKS": 100, "planning.calibration._STEP_TURNS": 2}
    for name, number in {**few, "api.planning._SMALL_TIMES": 2, "api.planning._PROMPTS": 5}.items():
        monkeypatch.setattr(f"giaann_dask.{name}", number)
    assert kept_rates() is None
    with gd.connect(workers=2) as client:
        plan = gd.plan(sample_text(), client=client, calibrate=True)
        (kind,) = plan.hardware.workers if len(plan.hardware.workers) == 1 else (None,)
        assert kind is None or (kind.count, kind.per_host, kind.role) == (2, 2, "both")
        kept = kept_rates()
        assert kept == plan.hardware.rates
        assert kept is not None
        assert "giaann-dask" in kept.measured
        assert kept.batch_sizes[0] == 1
        measured = ("tasks_per_s", "text_per_s", "start_s", "commit_s", "process_bytes", "step_s", "run_s", "row_s")
        assert not [name for name in measured if getattr(kept, name) == getattr(Rates(), name)]
        assert plan.hardware.links["host"] != gd.Hardware(workers=plan.hardware.workers).links["host"]
        given = gd.TrainingOptions(rounds_in_flight=3)
        specification, options = choose_options(
            client, sample_text(), tmp_path / "planned", None, gd.TextOptions(), given
        )
        assert options.rounds_in_flight == 3
        planned = gd.train(
            sample_text(), tmp_path / "planned", client=client, specification=specification, options=options
        )
        default = gd.train(sample_text(), tmp_path / "default", client=client)
        assert planned.digest() == default.digest()
        specification, _ = choose_options(
            client, sample_text(), tmp_path / "default", default.specification, gd.TextOptions(), given
        )
        assert specification == default.specification
    with pytest.raises(gd.GiaannError, match="training with plan reads the text more than once"):
        choose_options(client, iter(["a"]), tmp_path / "new", None, gd.TextOptions(), given)
