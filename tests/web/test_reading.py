from qkv import tasks
from qkv.web.reading import read_source
from tests.tasks.tiny import write_pairs


def test_a_source_of_a_recurrent_network_may_be_longer_than_its_answers(tmp_path):
    sizes = {"family": "recurrent", "dim": 8, "max_length": 8}
    config = tasks.configure("pairs", tasks.preset("pairs", None), {"model": sizes, "data": write_pairs(tmp_path)})
    job = tasks.tasks["pairs"].load(config.data)
    read = read_source(job, tasks.build(config, job), "abC" * 10)
    assert read.tokens == list("abc" * 10)
    assert read.notes == []
