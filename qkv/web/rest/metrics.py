"""Counters and histograms in Prometheus' text format 0.0.4."""

from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate

from qkv.inference.prefix_cache import PrefixStatistics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Upper bounds of the buckets of times."""
Labels = tuple[tuple[str, str], ...]


class CounterMetric:
    """A count by labels."""

    def __init__(self, name: str, help_text: str):
        self.name, self.help_text = name, help_text
        self.values: dict[Labels, float] = {}

    def add(self, amount: float = 1, **labels: str) -> None:
        """Count."""
        key = tuple(labels.items())
        self.values[key] = self.values.get(key, 0) + amount

    def lines(self) -> list[str]:
        """Return its lines."""
        rows = [f"{self.name}{_braces(key)} {_number(value)}" for key, value in sorted(self.values.items())]
        return [*_head(self.name, self.help_text, "counter"), *rows]


class HistogramMetric:
    """Times by labels, counted in buckets."""

    def __init__(self, name: str, help_text: str, bounds: tuple[float, ...] = SECONDS):
        self.name, self.help_text, self.bounds = name, help_text, bounds
        self._buckets: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = {}

    def observe(self, value: float, **labels: str) -> None:
        """Count one time."""
        key = tuple(labels.items())
        self._buckets.setdefault(key, [0] * (len(self.bounds) + 1))[bisect_left(self.bounds, value)] += 1
        self._sums[key] = self._sums.get(key, 0.0) + value

    def lines(self) -> list[str]:
        """Return its lines."""
        found = _head(self.name, self.help_text, "histogram")
        for key, buckets in sorted(self._buckets.items()):
            names = [*(_number(bound) for bound in self.bounds), "+Inf"]
            totals = list(accumulate(buckets))
            for bound, total in zip(names, totals, strict=True):
                found.append(f"{self.name}_bucket{_braces((*key, ('le', bound)))} {total}")
            found.append(f"{self.name}_sum{_braces(key)} {_number(self._sums[key])}")
            found.append(f"{self.name}_count{_braces(key)} {totals[-1]}")
        return found


class ApiMetrics:
    """What the API counts."""

    def __init__(self) -> None:
        self.requests = CounterMetric("qkv_requests_total", "Responses by route and status.")
        self.tokens = CounterMetric("qkv_tokens_total", "Tokens of prompts and completions.")
        self.first_token = HistogramMetric(
            "qkv_time_to_first_token_seconds", "Time from a request for completions to its first token."
        )
        self.duration = HistogramMetric("qkv_request_seconds", "Time from a request to the end of its response.")

    def count(self, route: str, status: int, seconds: float) -> None:
        """Count a response."""
        self.requests.add(route=route, status=str(status))
        self.duration.observe(seconds, route=route)

    def render(self, gauges: Mapping[str, tuple[str, float]], prefixes: PrefixStatistics | None = None) -> str:
        """Return all lines; `gauges` maps a name to its help text and its value now."""
        lines: list[str] = []
        for metric in (self.requests, self.tokens, self.first_token, self.duration):
            lines += metric.lines()
        for counter in () if prefixes is None else _prefix_counters(prefixes):
            lines += counter.lines()
        for name, (help_text, value) in gauges.items():
            lines += [*_head(name, help_text, "gauge"), f"{name} {_number(value)}"]
        return "\n".join(lines) + "\n"


def _prefix_counters(found: PrefixStatistics) -> list[CounterMetric]:
    """Return what a prefix cache has counted."""
    prompts = CounterMetric(
        "qkv_prefix_cache_prompts_total", "Prompts of a block or more, by whether a part was known."
    )
    tokens = CounterMetric("qkv_prefix_cache_tokens_total", "Their tokens, by whether they were computed.")
    evictions = CounterMetric("qkv_prefix_cache_evictions_total", "Parts that made room for others.")
    for label, count in (("hit", found.hits), ("miss", found.misses)):
        prompts.add(count, result=label)
    for label, count in (("reused", found.tokens_reused), ("computed", found.tokens_prefilled)):
        tokens.add(count, kind=label)
    evictions.add(found.evictions)
    return [prompts, tokens, evictions]


def _head(name: str, help_text: str, kind: str) -> list[str]:
    return [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]


def _braces(labels: Labels) -> str:
    if not labels:
        return ""
    pairs = (f'{name}="{_escape(value)}"' for name, value in labels)
    return "{" + ",".join(pairs) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
