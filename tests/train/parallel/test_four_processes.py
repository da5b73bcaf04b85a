"""Four processes against one, and a run that goes on with four, two and one."""

import pytest

from benchmarks.mesh_training import Job, difference, run_job, run_jobs
from qkv.train import Run

STEPS = {"steps": 13}
MESHES = ("shard=4", "data=2,shard=2", "shard=2,sequence=2")


@pytest.mark.slow
@pytest.mark.process
def test_four_processes_then_two_then_one(tmp_path):
    """Every mesh is stopped at step 4, goes on with two processes, is stopped at step 8 and ends with one."""
    one = tmp_path / "one"
    run_job(Job(str(one), "data=1", STEPS))
    whole = [Job(str(tmp_path / mesh), mesh, STEPS) for mesh in MESHES]
    stopped = [Job(str(tmp_path / f"stopped {mesh}"), mesh, STEPS, stop_at=4) for mesh in MESHES]
    held = run_jobs(4, [*whole, *stopped])
    run_jobs(2, [Job(job.folder, "shard=2", STEPS, stop_at=8) for job in stopped])
    for job in stopped:
        run_job(Job(job.folder, "data=1", STEPS))
        resumed = [line for line in Run(tmp_path / job.folder).read_metrics() if line.get("event") == "resumed"]
        assert [(line["step"], line["exact"]) for line in resumed] == [(4, False), (8, False)]
    for job in (*whole, *stopped):
        assert max(difference(one, tmp_path / job.folder).values()) <= 1e-12, job
    for mesh, sizes in zip(MESHES, held, strict=False):
        shares = {"data=2,shard=2": 2}.get(mesh, 4)
        assert max(process["parameters"] for process in sizes) <= 19_024 / shares * 1.1
