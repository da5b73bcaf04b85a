import re

from qkv.web.rest.metrics import ApiMetrics, CounterMetric, HistogramMetric

LINE = re.compile(r'[a-z_]+(\{[a-z_]+="(\\.|[^"\\\n])*"(,[a-z_]+="(\\.|[^"\\\n])*")*\})? [-+0-9.einfEINF]+')


def test_counters_by_label():
    counter = CounterMetric("some_total", "Help.")
    counter.add(route="/b", status="200")
    counter.add(2, route="/a", status="429")
    counter.add(3, route="/b", status="200")
    assert counter.lines() == [
        "# HELP some_total Help.",
        "# TYPE some_total counter",
        'some_total{route="/a",status="429"} 2',
        'some_total{route="/b",status="200"} 4',
    ]


def test_a_histogram_counts_what_is_at_most_each_bound():
    histogram = HistogramMetric("some_seconds", "Help.", bounds=(0.5, 2.0))
    for value in (0.25, 0.5, 0.75, 2.0, 3.5):
        histogram.observe(value)
    assert histogram.lines()[2:] == [
        'some_seconds_bucket{le="0.5"} 2',
        'some_seconds_bucket{le="2"} 4',
        'some_seconds_bucket{le="+Inf"} 5',
        "some_seconds_sum 7",
        "some_seconds_count 5",
    ]


def test_every_line_has_the_format():
    metrics = ApiMetrics()
    metrics.requests.add(route='a "quoted" \\ path\n', status="200")
    metrics.duration.observe(0.3, route="/v1/predict")
    lines = metrics.render({"some_gauge": ("Help.", 1.5)}).splitlines()
    assert lines[-1] == "some_gauge 1.5"
    assert 'route="a \\"quoted\\" \\\\ path\\n"' in "\n".join(lines)
    samples = [line for line in lines if not line.startswith("# ")]
    assert len(samples) > 15
    assert [line for line in samples if not LINE.fullmatch(line)] == []
