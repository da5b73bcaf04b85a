from dataclasses import replace

from qkv.tasks.training import Training, choose


def test_the_best_on_held_out_data_is_chosen():
    tried = [Training("a", rate, 0, "a", held_out=score) for rate, score in ((0.1, 0.5), (0.3, 0.2), (0.9, 0.4))]
    assert choose(tried).rate == 0.3
    assert choose([replace(tried[1], rate=0.7), tried[1]]).rate == 0.3  # of two equals the lower
    assert choose([replace(tried[1], rate=rate) for rate in (0.7, 0.1, 0.3)]).rate == 0.3  # of three the middle one
    assert choose([replace(tried[1], failed="no number"), tried[0]]).rate == 0.1
    assert choose([replace(tried[1], held_out=None), tried[0]]).rate == 0.1
    assert choose([replace(tried[0], failed="no number")]) is None
