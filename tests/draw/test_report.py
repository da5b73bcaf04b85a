import math
import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser

import pytest

from qkv.draw import (
    AlignmentFigure,
    ConfusionTable,
    Example,
    Mistakes,
    Panel,
    ReportAnswer,
    TrainingReport,
    data_uri,
    encode_png,
    report_page,
)

EVIL = "</bdi><script>alert('x')</script> \"quoted\" & \u202eturned\x00"
SHOWN = EVIL.replace("\u202e", "<U+202E>").replace("\x00", "<U+0000>")
VOID = {"meta", "br"}


class Page(HTMLParser):
    """Elements with their texts; every element must be closed in order."""

    def __init__(self, html):
        super().__init__()
        self.open, self.elements = [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        element = {"tag": tag, "attributes": dict(attributes), "text": "", "inside": [e["tag"] for e in self.open]}
        self.elements.append(element)
        self.open += [element] * (tag not in VOID)

    def handle_startendtag(self, tag, attributes):
        self.elements.append({"tag": tag, "attributes": dict(attributes), "text": "", "inside": []})

    def handle_endtag(self, tag):
        assert self.open.pop()["tag"] == tag

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data

    def find(self, tag, **attributes):
        return [
            element
            for element in self.elements
            if element["tag"] == tag and attributes.items() <= element["attributes"].items()
        ]

    def texts(self, tag, **attributes):
        return [element["text"] for element in self.find(tag, **attributes)]


def picture(rows=2, columns=3, title="cab"):
    return AlignmentFigure(
        title,
        [f"w{n}" for n in range(rows)],
        [f"r{n}" for n in range(columns)],
        [Panel("mean", [[1 / columns] * columns] * rows)],
    )


URI = data_uri(encode_png(bytes((0, 255)), 2, 1, 1))
RECORD = TrainingReport(
    title="A run",
    family="encoder_decoder",
    parameters=1_234_567,
    settings={"model": {"hidden_dim": 64, "key_dim": None}, "training": {"learning_rate": 0.001, "compile": True}},
    training_loss=[(1, 4.0), (2, 3.0), (3, 2.5)],
    validation_loss=[(2, 3.5), (3, 3.25), (4, None)],
    metrics={
        "test, greedy": {"examples": 1200, "token_error_rate": 0.0625},
        "test, beam 4": {"examples": 1200, "token_error_rate": 0.05, "cosine": 0.98765},
    },
    examples=[
        Example("cab", [ReportAnswer("K AE B", 0.9), ReportAnswer("S AE B", 0.0005)], ["K AE B"]),
        Example("ox", [ReportAnswer("AA K", 0.6), ReportAnswer("AA K S", 0.4)], ["AA K S", "OW K S"]),
        Example("mute", [], ["M Y UW T"]),
    ],
    headline="token_error_rate",
    confusion=ConfusionTable([[8, 0], [1, 1200]], ["cat", "dog"]),
    mistakes=Mistakes([Example("oxen", [ReportAnswer("AA K", 0.7)], ["AA K S"], URI)], 1234, 2000, "In any order."),
    alignments=[picture()],
    note="A sentence.",
)


def test_everything_is_on_the_page():
    page = Page(report_page(RECORD))
    assert page.texts("h1") == ["A run"]
    assert page.texts("title")[0] == "A run"
    assert page.texts("dt") == ["Token error rate", "Family", "Parameters", "Steps", "Lowest validation loss"]
    assert page.texts("dd") == ["5.00% test, beam 4", "encoder decoder", "1,234,567", "3", "3.25 at step 3"]
    assert page.texts("h2") == [
        "Losses",
        "Metrics",
        "Confusion matrix",
        "Wrong answers",
        "Predictions",
        "Alignments",
        "Settings",
    ]
    assert len(page.find("svg")) == 2


def rows(page, number):
    """Return the cells of each row of table `number`."""
    table = page.find("table")[number]
    first = page.elements.index(table)
    following = [e for e in page.find("table") if page.elements.index(e) > first]
    last = page.elements.index(following[0]) if following else len(page.elements)
    found = []
    for element in page.elements[first:last]:
        if element["tag"] == "tr":
            found.append([])
        elif element["tag"] in ("td", "th"):
            found[-1].append(element["text"])
    return found


def test_tables():
    page = Page(report_page(RECORD))
    assert rows(page, 4) == [["hidden dim", "64"], ["key dim", "none"]]
    assert rows(page, 5) == [["learning rate", "0.001"], ["compile", "yes"]]
    assert rows(page, 1) == [["", "cat", "dog"], ["cat", "8", "."], ["dog", "1", "1,200"]]
    assert rows(page, 2)[1:] == [["oxen", "AA K S", "✗AA K", "70.0%"]]
    assert page.find("img")[0]["attributes"]["src"] == URI
    told = "1,234 of 2,000 answers that were checked are wrong. In any order. 1,233 more wrong answers are not shown."
    assert told in page.texts("p")
    assert rows(page, 0) == [
        ["", "examples", "token error rate", "cosine"],
        ["test, greedy", "1,200", "6.25%", "none"],
        ["test, beam 4", "1,200", "5.00%", "0.9877"],
    ]
    assert rows(page, 3) == [
        ["input", "references", "predictions", "probability"],
        ["cab", "K AE B", "✓K AE B", "90.0%"],
        ["S AE B", "< 0.1%"],
        ["ox", "AA K SOW K S", "✗AA K", "60.0%"],
        ["✓AA K S", "40.0%"],
        ["mute", "M Y UW T", "no prediction", ""],
    ]


def test_a_run_with_nothing_yet():
    page = Page(report_page(TrainingReport("t", "recurrent", 7)))
    assert page.texts("dd") == ["recurrent", "7"]
    assert page.texts("h2") == ["Losses"]
    assert "no points yet" in page.texts("text")
    assert page.find("table") == []


def test_hostile_texts_are_only_texts():
    record = TrainingReport(
        EVIL,
        EVIL,
        1,
        {EVIL: {EVIL: EVIL}},
        metrics={EVIL: {EVIL: 1.0}},
        examples=[Example(EVIL, [ReportAnswer(EVIL, 1.0)], [EVIL])],
        alignments=[AlignmentFigure(EVIL, [EVIL], [EVIL], [Panel(EVIL, [[1.0]], EVIL)])],
        note=EVIL,
        training_loss_extra=EVIL,
    )
    html = report_page(record)
    page = Page(html)
    assert page.find("script") == []
    assert page.texts("h1") == [SHOWN]
    assert page.texts("bdi").count(SHOWN) == 11
    assert not re.search("[\x00\u202a-\u202e\u2066-\u2069]", html)
    html.encode("utf-8")


def test_right_to_left_text_is_isolated():
    page = Page(report_page(TrainingReport("t", "f", 1, examples=[Example("שלום", [ReportAnswer("שלום", 0.5)], [])])))
    assert [element["inside"][-1] for element in page.find("bdi") if element["text"] == "שלום"] == ["th", "td"]


def test_the_page_is_self_contained_and_has_no_scripts():
    html = report_page(RECORD)
    page = Page(html)
    assert re.findall(r"https?:[^\"]*", html) == ["http://www.w3.org/2000/svg"] * 2
    names = {name for element in page.elements for name in element["attributes"]}
    assert not {"href", "style", "srcset", "action"} & names
    addresses = [element["attributes"]["src"] for element in page.elements if "src" in element["attributes"]]
    assert addresses == [URI]
    assert not any(name.startswith("on") for name in names)
    active = {"script", "link", "iframe", "object", "embed", "image", "form", "base", "animate", "foreignobject"}
    assert not active & {element["tag"] for element in page.elements}
    assert "url(" not in html
    assert "@import" not in html


def test_the_policy_knows_the_style_and_forbids_the_rest():
    page = Page(report_page(RECORD))
    (policy,) = page.find("meta", **{"http-equiv": "Content-Security-Policy"})
    rules = dict(rule.split(" ", 1) for rule in policy["attributes"]["content"].split("; "))
    (style,) = page.texts("style")
    digest = b64encode(sha256(style.encode()).digest()).decode()
    assert rules == {
        "default-src": "'none'",
        "style-src": f"'sha256-{digest}'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }


def long_run(count):
    training = [(step, 3 * math.exp(-step / 20_000) + 0.5 + 0.3 * math.sin(step * 7.1)) for step in range(count)]
    return TrainingReport("t", "f", 1, training_loss=training, validation_loss=training[::500])


def test_a_long_run_is_smoothed_and_stays_small():
    html = report_page(long_run(100_000))
    assert "training, mean" in Page(html).texts("text")
    assert len(html.encode()) < 100_000


def test_a_short_run_is_shown_as_it_is():
    names = Page(report_page(long_run(200))).texts("text")
    assert "training" in names
    assert "training, mean" not in names


@pytest.mark.parametrize(
    ("count", "training"),
    [
        (200, ["training, label smoothing 0.1"]),
        (201, ["training, label smoothing 0.1, each step", "training, label smoothing 0.1, mean"]),
    ],
)
def test_different_training_and_validation_losses_are_explained(count, training):
    page = Page(report_page(replace(long_run(count), training_loss_extra="label smoothing 0.1")))
    names = [name for name in page.texts("text") if name.startswith(("training", "validation"))]
    assert names == [*training, "validation, plain"]
    (said,) = [text for text in page.texts("p") if "Lower is better" in text]
    assert "The training loss includes label smoothing 0.1, the validation loss does not" in said


def test_equal_kinds_of_loss_need_no_explanation():
    page = Page(report_page(long_run(200)))
    assert [name for name in page.texts("text") if name.startswith(("training", "validation"))] == [
        "training",
        "validation",
    ]
    assert "cannot be compared" not in "".join(page.texts("p"))


@pytest.mark.parametrize(("last", "log"), [(0.2, False), (0.1, True)])
def test_a_steep_loss_has_a_log_axis(last, log):
    html = report_page(TrainingReport("t", "f", 1, training_loss=[(1, 4.0), (2, last)]))
    assert ("logarithmic" in html) == log


def test_a_large_report_is_truncated_with_notes():
    text = "語<" * 5000
    record = TrainingReport(
        text,
        text,
        1,
        {text: {f"{n}{text}": text for n in range(12)}},
        long_run(100_000).training_loss,
        long_run(100_000).training_loss,
        {text: {text: 1.0}},
        [Example(text, [ReportAnswer(text, 0.1)] * 50, [text] * 50)] * 10
        + [Example("a", [ReportAnswer("b", 1.0)], [])] * 1000,
        [picture(40, 50)] * 5,
        text,
    )
    html = report_page(record)
    page = Page(html)
    assert len(html.encode()) < 2_000_000
    assert any("810 more examples are not shown." in text for text in page.texts("p"))
    assert any("2 more figures are not shown." in text for text in page.texts("p"))
    assert len(page.find("tbody", **{"class": "entry"})) == 200
    assert len(page.find("figure", **{"class": "card heatmap"})) == 3


def test_a_figure_that_is_too_large_does_not_hide_the_next():
    page = Page(report_page(TrainingReport("t", "f", 1, alignments=[picture(100, 100, "big"), picture(title="small")])))
    assert "small" in page.texts("text")
    assert "big" not in page.texts("text")
