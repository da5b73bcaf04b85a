from qkv.data import xor


def test_xor():
    points = xor()
    assert points.examples.inputs.tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert points.examples.labels.tolist() == [0, 1, 1, 0]
    assert points.classes == ("0", "1")
