"""Two processes that share a model against one: training, memory, checkpoints of other meshes."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors import safe_open

from benchmarks.mesh_training import Job, difference, losses, run_job, run_jobs
from qkv.storage import list_steps
from qkv.train import Run

STEPS = {"steps": 13}
MESHES = ("data=2", "shard=2", "sequence=2")
STOP = 8
"""Three steps after the last validation."""


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """A run of one process, in float64."""
    folder = tmp_path_factory.mktemp("one") / "run"
    run_job(Job(str(folder), "data=1", STEPS))
    stopped = folder.with_name("stopped")
    run_job(Job(str(stopped), "data=1", STEPS, stop_at=STOP))
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Folders and held bytes of runs of two processes, by name; `stopped` has a checkpoint of step 5 and one of 8."""
    root = tmp_path_factory.mktemp("two")
    jobs = {mesh: Job(str(root / mesh), mesh, STEPS) for mesh in MESHES}
    jobs["single"] = replace(jobs["shard=2"], folder=str(root / "single"), double=False)
    jobs["interrupted"] = replace(jobs["shard=2"], folder=str(root / "interrupted"), stop_at=5)
    jobs["stopped"] = replace(jobs["shard=2"], folder=str(root / "stopped"), stop_at=STOP)
    held = run_jobs(2, list(jobs.values()))
    return root, dict(zip(jobs, held, strict=True))


@pytest.fixture(scope="module")
def resumed(two, one, tmp_path_factory):
    """Runs that were stopped and go on, by name: from the shards of two processes, and from one process to two."""
    root = tmp_path_factory.mktemp("resumed")
    names = {**dict.fromkeys(MESHES, two[0] / "stopped"), "from one": one.with_name("stopped")}
    names["damaged"] = two[0] / "stopped"
    names["interrupted"] = two[0] / "interrupted"
    for name, source in names.items():
        shutil.copytree(source, root / name)
    _, newest = list_steps(root / "damaged" / "checkpoints")
    shard = newest[1] / "shard-00002-model-00001-of-00001.safetensors"
    data = bytearray(shard.read_bytes())
    data[-9] ^= 1
    shard.write_bytes(data)
    meshes = {**{mesh: mesh for mesh in MESHES}, **dict.fromkeys(("from one", "damaged", "interrupted"), "shard=2")}
    run_jobs(2, [Job(str(root / name), mesh, STEPS) for name, mesh in meshes.items()])
    return root


def event(folder, kind):
    (found,) = [line for line in Run(folder).read_metrics() if line.get("event") == kind]
    return found


@pytest.mark.process
@pytest.mark.parametrize("mesh", MESHES)
def test_losses_weights_average_and_optimizer_are_those_of_one_process(one, two, mesh):
    """Accumulation, clipping, an average, and steps with fewer examples than processes; 13 steps in float64."""
    norms = [line["norm"] for line in Run(one).read_metrics() if "norm" in line]
    assert min(norms) > 0.3  # every gradient is clipped
    found = difference(one, two[0] / mesh)
    assert set(found) == {"loss", "norm", "score", "model", "ema", "best", "optimizer", "final"}
    assert max(found.values()) <= 1e-12, found


@pytest.mark.process
def test_float32_agrees_to_rounding(two, tmp_path):
    run_job(Job(str(tmp_path / "run"), "data=1", STEPS, double=False))
    assert max(difference(tmp_path / "run", two[0] / "single").values()) <= 1e-5


@pytest.mark.process
def test_each_process_holds_its_share(two):
    """Of 19,024 bytes of parameters, and twice that of Adam's moments; nothing is padded."""
    _, held = two
    for mesh in ("shard=2", "sequence=2"):
        for kind, total in (("parameters", 19_024), ("optimizer", 38_048)):
            sizes = [process[kind] for process in held[mesh]]
            assert sum(sizes) == total
            assert max(sizes) <= total / 2 * 1.1
    assert [process["parameters"] for process in held["data=2"]] == [19_024, 19_024]


@pytest.mark.process
def test_the_same_mesh_continues_bit_for_bit(two, resumed):
    assert max(difference(two[0] / "shard=2", resumed / "shard=2").values()) == 0
    found = event(resumed / "shard=2", "resumed")
    assert (found["step"], found["exact"], found["changed"]) == (STOP, True, {})


@pytest.mark.process
def test_signal_during_a_validation_stops_all_processes_and_repeats_it(two, resumed):
    """Rank 0 receives it at the end of step 5, after which the processes validate together."""
    names = [line.get("event") for line in Run(two[0] / "interrupted").read_metrics() if "event" in line]
    assert names == []  # not validated
    assert max(difference(two[0] / "shard=2", resumed / "interrupted").values()) == 0
    assert event(resumed / "interrupted", "resumed")["step"] == 5


@pytest.mark.process
@pytest.mark.parametrize("mesh", ["data=2", "sequence=2"])
def test_another_mesh_continues_from_shards(one, resumed, mesh):
    assert max(difference(one, resumed / mesh).values()) <= 1e-12
    found = event(resumed / mesh, "resumed")
    assert (found["step"], found["exact"]) == (STOP, False)
    assert found["changed"]["mesh"][0] == "data=1,shard=2,sequence=1"


@pytest.mark.process
def test_one_process_continues_from_shards(one, two, tmp_path):
    shutil.copytree(two[0] / "stopped", tmp_path / "run")
    run_job(Job(str(tmp_path / "run"), "data=1", STEPS))
    assert max(difference(one, tmp_path / "run").values()) <= 1e-12
    found = event(tmp_path / "run", "resumed")
    assert (found["exact"], found["changed"]["processes"]) == (False, [2, 1])


@pytest.mark.process
def test_two_processes_continue_from_one(one, resumed):
    assert max(difference(one, resumed / "from one").values()) <= 1e-12
    assert event(resumed / "from one", "resumed")["step"] == STOP


@pytest.mark.process
def test_damaged_shard_is_named_and_the_checkpoint_before_is_used(two, resumed):
    message = event(resumed / "damaged", "damaged_checkpoint")["message"]
    assert "shard-00002-model-00001-of-00001.safetensors is damaged" in message
    assert event(resumed / "damaged", "resumed")["step"] == 5
    assert (resumed / "damaged/checkpoints/step-00000008.damaged-1").is_dir()
    assert losses(resumed / "damaged") == losses(two[0] / "shard=2")


@pytest.mark.process
def test_one_state_dict_of_shards_is_read_whole(one, two):
    """As for a run that was stopped and is evaluated."""
    found = Run(two[0] / "shard=2").load_checkpoint(lambda record: "ema")
    expected = Run(one).load_checkpoint(lambda record: "ema")
    assert list(found.tensors) == ["ema"]
    assert found.tensors["ema"].keys() == expected.tensors["ema"].keys()
    assert all(x.shape == expected.tensors["ema"][name].shape for name, x in found.tensors["ema"].items())


@pytest.mark.process
def test_checkpoint_has_a_safetensors_file_per_process_and_no_pickle(two):
    _, folder = list_steps(two[0] / "stopped/checkpoints")[-1]
    shards = [f"shard-0000{number}-model-00001-of-00001.safetensors" for number in (1, 2)]
    assert sorted(path.name for path in Path(folder).iterdir()) == ["MANIFEST.json", "progress.json", *shards]
    with safe_open(folder / shards[1], "pt") as file:
        assert file.get_slice("model.norm.weight").get_shape() == [6]
        assert "optimizer.0.exp_avg" in file.keys()  # noqa: SIM118 - not a dict
