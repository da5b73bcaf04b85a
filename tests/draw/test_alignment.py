from qkv.draw import alignment_panels
from qkv.explain import Alignment


def test_an_alignment_becomes_panels():
    heads = [[[0.5, 0.5]], [[1.0, 0.0]]]
    found = Alignment([[0.75, 0.25]], [heads, heads[::-1]])
    (mean,) = alignment_panels(found)
    assert (mean.title, mean.values, mean.note) == ("mean of all heads", [[0.75, 0.25]], "largest: 0.75")
    panels = alignment_panels(found, heads=True)
    assert [(panel.title, panel.values) for panel in panels] == [
        ("block 1, head 1", [[0.5, 0.5]]),
        ("block 1, head 2", [[1.0, 0.0]]),
        ("block 2, head 1", [[1.0, 0.0]]),
        ("block 2, head 2", [[0.5, 0.5]]),
    ]
