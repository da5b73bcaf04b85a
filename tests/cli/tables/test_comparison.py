from rich.console import Console

from qkv.cli.tables.comparison import make_tables


def record(name, accuracy=None, **more):
    figures = {"accuracy": dict(zip(("low", "mean", "high"), accuracy, strict=True))} if accuracy else {}
    costs = {"parameters": 9, "state_bytes": 4608, "multiplications": 79360, "peak_bytes": 3 << 19}
    speeds = {"train_tokens_per_second": 1234.5, "seconds": 150.0, "decode_tokens_per_second": None}
    common = {"split": "test", "chance": 0.125, "rate": 0.01, "seeds": [0, 1], "refused": None, "failed": []}
    return {"contestant": name, "figures": figures, **common, **costs, **speeds, **more}


def drawn(records, width=160):
    screen = Console(width=width, force_terminal=True, color_system="standard", highlight=False)
    with screen.capture() as captured:
        for table in make_tables(records, width):
            screen.print(table)
    return captured.get()


def test_figures_with_their_spread_and_costs():
    text = drawn([record("softmax", (0.98, 0.99, 1.0))])
    costs = ("0.01", "4,608", "79,360", "1,234", "2.5", "1.5 MiB")
    for cell in ("softmax", "99.00%", "98.00% to 100.00%", "12.50%", *costs):
        assert cell in text
    assert "decoded" not in text  # nobody decoded
    assert "\x1b[1m99.00%" not in text  # alone, it is not the best


def test_the_best_is_bold():
    text = drawn([record("a", (0.1, 0.2, 0.3)), record("b", (0.4, 0.5, 0.6), state_bytes=5000)])
    assert "\x1b[1m50.00%" in text
    assert "\x1b[1m20.00%" not in text
    assert "\x1b[1m4,608" in text
    assert "\x1b[1m5,000" not in text


def test_errors_are_best_when_few_and_the_worst_comes_first():
    rates = [{"token_error_rate": {"low": m - 0.1, "mean": m, "high": m + 0.1}} for m in (0.3, 0.2)]
    text = drawn([record(name, figures=figures) for name, figures in zip("ab", rates, strict=True)])
    assert "\x1b[1m20.00%" in text
    assert "40.00% to 20.00%" in text


def test_one_seed_has_no_spread():
    assert " to " not in drawn([record("a", (0.5, 0.5, 0.5), seeds=[0])]).split("candidate")[1]


def test_one_without_figures_says_why_not():
    nothing = dict.fromkeys(("rate", "parameters", "state_bytes", "multiplications", "peak_bytes"))
    text = drawn([record("taylor[1]", refused="no", **nothing), record("b", failed=["x"]), record("c", (0, 0, 1))])
    assert "taylor[1]" in text
    assert "refused" in text
    assert "failed" in text


def test_a_narrow_screen_gets_more_tables_and_all_numbers():
    records = [record("softmax", (0.98, 0.99, 1.0))]
    assert len(make_tables(records, 160)) == 1
    assert len(make_tables(records, 100)) == 2
    for width in (50, 80):
        text = drawn(records, width)
        for cell in ("98.00% to 100.00%", "12.50%", "0.01", "4,608", "79,360", "1,234", "2.5", "1.5 MiB"):
            assert cell in text
