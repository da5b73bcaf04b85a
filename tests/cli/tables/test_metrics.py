import io
import re

import pytest
from rich.console import Console

from qkv import runs
from qkv.cli.tables import metrics as tables
from qkv.metrics.display import format_metric, metric_meaning, metric_title
from qkv.tasks import tasks

SMALL = {
    "pairs": {"model": {"family": "recurrent", "dim": 8}},
    "text": {"model": {"dim": 8, "heads": 1, "layers": 1, "max_length": 32}, "data": {"length": 16}},
    "masked": {"model": {"dim": 8, "heads": 1, "layers": 1}, "data": {"examples": 8}},
    "words": {"model": {"dim": 8}, "data": {"least": 1}},
    "recall": {"model": {"dim": 8, "heads": 1}, "data": {"examples": 8}},
    "xor": {},
}


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """Task -> metrics of an untrained model."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "pairs.tsv").write_text("".join(f"{'ab'[i % 2]}{'cd'[i // 2 % 2]}{i}\tx{i} y\n" for i in range(40)))
    sentences = " ".join(
        f"The {a} sees the {b}. Then it runs." for a in ("cat", "dog", "cow", "fox") for b in ("hen", "owl", "ant")
    )
    (folder / "book.txt").write_text("\n\n".join(f"{sentences}\n{sentences}" for _ in range(30)))
    files = {"pairs": "pairs.tsv", "text": "book.txt", "masked": "book.txt", "words": "book.txt"}
    found = {}
    for name, changes in SMALL.items():
        data = {**changes.get("data", {}), **({"train_file": str(folder / files[name])} if name in files else {})}
        config = runs.configure(name, runs.preset(name, None), {**changes, "data": data})
        task = tasks[name].load(config.data)
        model = runs.build(config, task)
        found[name] = {
            f"{task.default_split} {search}".strip(): task.evaluate(model, task.default_split, **options)
            for search, options in task.searches.items()
        }
    return found


def printed(metrics, width, monkeypatch):
    text = io.StringIO()
    monkeypatch.setattr(tables, "console", lambda: Console(file=text, width=width, highlight=False))
    tables.print_metrics(metrics)
    return text.getvalue()


@pytest.mark.parametrize("width", [50, 80, 160])
@pytest.mark.parametrize("task", list(SMALL))
def test_every_name_and_number_of_every_task_is_whole(evaluated, task, width, monkeypatch):
    text = printed(evaluated[task], width, monkeypatch)
    assert max(map(len, text.splitlines())) <= width
    for values in evaluated[task].values():
        for name, value in values.items():
            row = rf"\b{metric_title(name)} .*{re.escape(format_metric(name, value))}(?![\d.,%])"
            assert re.search(row, text), (name, text)


@pytest.mark.parametrize("task", list(SMALL))
def test_every_metric_has_a_meaning_which_a_wide_screen_shows(evaluated, task, monkeypatch):
    text = printed(evaluated[task], 200, monkeypatch)
    for values in evaluated[task].values():
        for name in values:
            assert metric_meaning(name)
            assert metric_meaning(name) in text


def test_a_narrow_screen_gets_a_table_per_evaluation(monkeypatch):
    metrics = {f"test beam {width}": {"damerau_levenshtein": 0.5, "accuracy": 0.25} for width in (1, 2, 4, 8)}
    assert printed(metrics, 50, monkeypatch).count("25.00%") == 4
    assert printed(metrics, 50, monkeypatch).count("accuracy") == 4
    assert printed(metrics, 160, monkeypatch).count("accuracy") < 4


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("examples", 12345, "12,345"),
        ("token_error_rate", 0.024, "2.40%"),
        ("next_sentence_accuracy", 0.5, "50.00%"),
        ("loss", 1.25, "1.2500"),
        ("word_perplexity", 2.33587342e23, "2.336e+23"),
        ("loss", float("nan"), "nan"),
        ("accuracy", float("inf"), "inf"),
        ("cosine", None, "none"),
    ],
)
def test_values_have_their_unit(name, value, text):
    assert format_metric(name, value) == text


def test_a_confusion_matrix_is_split_where_it_does_not_fit(monkeypatch):
    text = io.StringIO()
    monkeypatch.setattr(tables, "console", lambda: Console(file=text, width=50, highlight=False))
    classes = [f"class {number}" for number in range(11)]
    tables.print_confusion([[1000 * row + column for column in range(11)] for row in range(11)], classes)
    assert max(map(len, text.getvalue().splitlines())) <= 50
    assert all(text.getvalue().count(f" {name} ") == 1 + text.getvalue().count("predicted") for name in classes)
    numbers = re.findall(r" (\d{4,5}) ", text.getvalue())
    assert {int(number) for number in numbers} >= {1000 * row + column for row in range(1, 11) for column in range(11)}
