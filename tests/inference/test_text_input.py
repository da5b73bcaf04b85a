from qkv import runs, tasks
from tests.tasks.tiny import write_pairs


def test_a_recurrent_source_may_be_longer_than_max_length(tmp_path):
    sizes = {"family": "recurrent", "dim": 8, "max_length": 8}
    config = runs.configure("pairs", runs.preset("pairs", None), {"model": sizes, "data": write_pairs(tmp_path)})
    task = tasks.tasks["pairs"].load(config.data)
    read = task.text_input(runs.build(config, task)).read("abC" * 10)
    assert read.tokens == list("abc" * 10)
    assert read.notes == []
