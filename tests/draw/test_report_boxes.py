"""Sections of a report about boxes: figures, curves, counts, drawings; everything escaped and limited."""

import re

from qkv.draw import BoxMistake, BoxReport, ClassBoxes, TrainingReport, report_page
from qkv.draw.report_boxes import boxes_sections

CURVE = [(0.0, 1.0), (0.5, 0.75), (1.0, 0.5)]


def make(**changes):
    values = {
        "classes": [ClassBoxes("ace", 12, 0.91234, 0.5, CURVE), ClassBoxes("<king>", 0, -1.0, -1.0, [])],
        "hits": 9,
        "objects": 12,
        "min_score": 0.375,
        "false_positives": {"wrong class": 4, "background": 1},
        "missed": {"never proposed": 2, "not detected": 1},
        "pictures": [BoxMistake("<photo>.jpg", "<svg>drawing</svg>", ["ace 0.90: <wrong> class"])],
        "wrong_pictures": 3,
    }
    return BoxReport(**{**values, **changes})


def test_figures_counts_and_drawings_are_on_the_page():
    page = report_page(TrainingReport("detect: faster", "faster", 1, boxes=make()))
    assert page.index("Metrics" if "Metrics" in page else "Losses") < page.index("Classes")
    assert '<td class="number">12</td><td class="number">0.912</td><td class="number">0.500</td>' in page
    assert '<td class="number">0</td><td class="number">-</td><td class="number">-</td>' in page
    assert "9 of 12 objects were found. Detections with a score of at least 0.38 are counted" in page
    assert "False positives: 5" in page
    assert "Missed objects: 3 of 12" in page
    assert "<svg>drawing</svg>" in page
    assert "2 more pictures with mistakes are not shown" in page
    assert "&lt;photo&gt;.jpg" in page
    assert "ace 0.90: &lt;wrong&gt; class" in page
    assert "<photo>" not in page
    assert "<king>" not in page


def test_curves_of_the_largest_classes_are_drawn():
    classes = [ClassBoxes(f"class {number}", number + 1, 0.5, 0.5, CURVE) for number in range(20)]
    text = boxes_sections(make(classes=classes))
    drawn = set(re.findall(r"class \d+", text[text.index("Precision and recall") : text.index("Errors by reason")]))
    assert drawn == {f"class {number}" for number in range(8, 20)}
    assert "8 more classes are not shown" in text


def test_drawings_stop_before_the_page_is_too_large():
    text = boxes_sections(make(pictures=[BoxMistake(str(n), f"<svg>{'x' * 500_000}</svg>", []) for n in range(5)]))
    assert text.count("<svg>x") == 2


def test_nothing_without_boxes_and_no_pictures_without_mistakes():
    assert boxes_sections(None) == ""
    assert "Worst pictures" not in boxes_sections(make(pictures=[], wrong_pictures=0))
    assert "Precision and recall" not in boxes_sections(make(classes=[ClassBoxes("a", 0, -1, -1, [])]))
