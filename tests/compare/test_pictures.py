import pytest

from qkv.compare.pictures import draw_pictures, read_sized


def record(name, chance=0.5, **accuracies):
    figures = {key: {"low": 0.0, "mean": value, "high": 1.0} for key, value in accuracies.items()}
    return {"contestant": name, "chance": chance, "figures": figures}


def test_metrics_with_a_size_are_read():
    figures = record("a", accuracy=0.1, length_256_accuracy=0.2, length_64_depth_25_accuracy=0.3, length_8=1)["figures"]
    found = [(one.axis, one.size, one.depth, one.value) for one in read_sized(figures)]
    assert found == [("length", 64, 25, 0.3), ("length", 256, None, 0.2)]


def test_accuracy_over_size_with_the_chance_line():
    records = [record("delta", length_40_accuracy=1.0, length_80_accuracy=0.75), record("refused")]
    pictures = draw_pictures(records, "parity")
    assert list(pictures) == ["sizes.svg"]
    assert "parity: accuracy by length" in pictures["sizes.svg"]
    assert ">delta</text>" in pictures["sizes.svg"]
    assert ">chance</text>" in pictures["sizes.svg"]
    assert "refused" not in pictures["sizes.svg"]


def test_depths_are_a_heat_map_and_their_mean_a_point():
    values = {"length_64_depth_0_accuracy": 0.25, "length_64_depth_100_accuracy": 0.75}
    more = {"length_512_depth_0_accuracy": 0.5, "length_512_depth_100_accuracy": 1.0}
    pictures = draw_pictures([record("delta", **values, **more)], "needle")
    assert list(pictures) == ["sizes.svg", "depths.svg"]
    cells = [("0 %", "64", 0.25), ("0 %", "512", 0.5), ("100 %", "64", 0.75), ("100 %", "512", 1.0)]
    for depth, length, value in cells:
        assert f"{depth} → {length}: {value:.4f}" in pictures["depths.svg"]
    assert "25% to 100%" in pictures["depths.svg"]


def test_updates_may_be_zero():
    (picture,) = draw_pictures([record("a", updates_0_accuracy=1.0, updates_8_accuracy=0.5)], "overwrite").values()
    assert "overwrite: accuracy by updates" in picture


@pytest.mark.parametrize("records", [[], [record("a", accuracy=1.0)], [record("a")]])
def test_without_sizes_there_is_no_picture(records):
    assert draw_pictures(records, "xor") == {}
