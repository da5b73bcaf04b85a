import json
import math
from contextlib import contextmanager

import pytest

from qkv import runs, tasks
from qkv.compare.candidates import Grid, make_candidates
from qkv.compare.comparison import Comparison, ComparisonSettings, lower_is_better, main_metric, spreads
from qkv.compare.rules import describe_rules
from qkv.errors import QkvError
from qkv.tasks.synthetic.rows import answer_loss
from qkv.train import Interrupted, Loop, Run
from tests.tasks.tiny import CHANGES, TINY, write_pairs

KEYS = [
    *("contestant", "family", "model", "refused", "failed", "split", "chance", "figures", "rate", "rates", "seeds"),
    *("parameters", "state_bytes", "multiplications", "peak_bytes"),
    *("unit", "train_tokens_per_second", "decode_tokens_per_second", "tokens", "seconds"),
]


def recall(folder, attention, seeds=1, rates=(0.01,), positions=None, changes=CHANGES, report=lambda _: None, search=1):
    candidates = make_candidates("recall", None, changes, Grid(attention, positions))
    task = tasks.tasks["recall"].load(changes["data"])
    return Comparison(task, candidates, folder, ComparisonSettings(seeds, rates, search_fraction=search), report)


class TestSettings:
    def test_rates_are_a_third_once_and_three_times_the_own(self):
        (only,) = make_candidates("recall", None, CHANGES, Grid("softmax"))
        assert ComparisonSettings().learning_rates_for(only.config, (1 / 3, 1, 3)) == [0.00167, 0.005, 0.015]
        assert ComparisonSettings(learning_rates=(0.5, 0.1, 0.5)).learning_rates_for(only.config, (1,)) == [0.5, 0.1]

    def test_spreads(self):
        found = spreads([{"x": 0.25, "y": 1.0}, {"x": 0.75, "y": 1.0}, {"x": 0.5, "y": 4.0}])
        assert found == {"x": {"mean": 0.5, "low": 0.25, "high": 0.75}, "y": {"mean": 2.0, "low": 1.0, "high": 4.0}}
        assert spreads([]) == {}
        assert spreads([{"x": 0.5, "y": 1.0}, {"y": 1.0}]) == {"y": {"mean": 1.0, "low": 1.0, "high": 1.0}}

    def test_which_metric_and_which_way(self):
        assert main_metric([{"figures": {}}, {"figures": {"accuracy": {}}}]) == "accuracy"
        assert lower_is_better("token_error_rate")
        assert lower_is_better("masked_loss")
        assert lower_is_better("word_perplexity")
        assert lower_is_better("bits_per_byte")
        assert lower_is_better("backbone_ms")
        assert not lower_is_better("jaccard")

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"seeds": 0}, "seeds must be at least 1, got 0"),
            ({"search_fraction": 0.0}, "search_fraction must be above 0"),
            ({"learning_rates": (0.1, 0.0)}, "more than 0, got 0.0"),
        ],
    )
    def test_bad_settings(self, settings, message):
        with pytest.raises(ValueError, match=message):
            ComparisonSettings(**settings)


class TestComparison:
    def test_records(self, tmp_path):
        records = recall(tmp_path, "softmax,taylor:key_dim=4", seeds=2, rates=(0.001, 0.01, 0.1)).run()
        assert [record["contestant"] for record in records] == ["softmax", "taylor:key_dim=4"]
        for record in records:
            assert list(record) == KEYS
            assert (record["split"], record["chance"], record["refused"], record["failed"]) == ("test", 0.5, None, [])
            assert record["seeds"] == [0, 1]
            assert [tried["rate"] for tried in record["rates"]] == [0.001, 0.01, 0.1]
            scores = {tried["rate"]: tried["held_out"] for tried in record["rates"]}
            assert record["rate"] == min(scores, key=lambda rate: (scores[rate], rate))
            assert record["train_tokens_per_second"] > 0
            assert record["decode_tokens_per_second"] is None

    def test_figures_are_those_of_the_run_folders(self, tmp_path):
        (record,) = recall(tmp_path, "softmax", seeds=3).run()
        kept = json.loads((tmp_path / "compare.json").read_text())
        assert kept["finished"]
        assert [(t["seed"], t["rate"], t["steps"]) for t in kept["trainings"]] == [(s, 0.01, 3) for s in range(3)]
        right = []
        for training in kept["trainings"]:
            _, job, model = runs.load(tmp_path / training["run"])
            right.append(job.evaluate(model, "test")["accuracy"])
        assert len(set(right)) > 1  # seeds differ
        spread = record["figures"]["accuracy"]
        assert spread["mean"] == pytest.approx(math.fsum(right) / 3)
        assert (spread["low"], spread["high"]) == (min(right), max(right))
        assert (tmp_path / "compare.svg").read_text().startswith("<svg")

    def test_an_impossible_pair_is_a_row(self, tmp_path):
        refused, softmax = recall(tmp_path, "taylor,softmax", positions="t5").run()
        assert list(refused) == KEYS
        assert "positions 't5' give a bias, which attention kind 'taylor' does not accept" in refused["refused"]
        assert (refused["figures"], refused["rate"], refused["parameters"]) == ({}, None, None)
        assert softmax["refused"] is None
        assert softmax["figures"]["accuracy"]["mean"] >= 0

    def test_finished_runs_are_skipped(self, tmp_path, monkeypatch):
        before = recall(tmp_path, "softmax", seeds=2).run()

        def refuse(*_):
            raise AssertionError("a finished run was trained or evaluated again")

        monkeypatch.setattr(Loop, "train", refuse)
        monkeypatch.setattr(tasks.RecallTask, "evaluate", refuse)
        again = recall(tmp_path, "softmax", seeds=2).run()
        varying = "peak_bytes"  # depends on the allocator
        assert [{**one, varying: 0} for one in again] == [{**one, varying: 0} for one in before]

    @pytest.mark.parametrize("name", ["figures.json", "training.json"])
    def test_bad_input_changed_results_are_refused(self, tmp_path, name):
        before = recall(tmp_path, "softmax").run()
        (path,) = tmp_path.rglob(name)
        record = json.loads(path.read_text())
        (record if name == "training.json" else record["figures"]).update(held_out=0.0, accuracy=1.0)
        path.write_text(json.dumps(record))
        with pytest.raises(QkvError, match=name):
            recall(tmp_path, "softmax").run()
        path.unlink()  # computed again
        (record,) = recall(tmp_path, "softmax").run()
        assert (record["figures"], record["rates"]) == (before[0]["figures"], before[0]["rates"])

    def test_changed_metrics_do_not_change_a_comparison(self, tmp_path):
        before = recall(tmp_path, "softmax").run()
        (path,) = tmp_path.rglob("metrics.jsonl")
        path.write_text("")
        (record,) = recall(tmp_path, "softmax").run()
        assert (record["rates"], record["seconds"]) == (before[0]["rates"], before[0]["seconds"])

    def test_interrupted_and_resumed(self, tmp_path, monkeypatch):
        train = Loop.train

        def stop_at_the_second(self):
            if "seed-1" in str(self.run.folder):
                raise Interrupted(2)
            return train(self)

        monkeypatch.setattr(Loop, "train", stop_at_the_second)
        with pytest.raises(Interrupted):
            recall(tmp_path, "softmax", seeds=3).run()
        kept = json.loads((tmp_path / "compare.json").read_text())
        assert not kept["finished"]
        assert [training["seed"] for training in kept["trainings"]] == [0]
        monkeypatch.setattr(Loop, "train", train)
        (record,) = recall(tmp_path, "softmax", seeds=3).run()
        assert record["seeds"] == [0, 1, 2]

    def test_a_rate_that_explodes_is_not_chosen(self, tmp_path, monkeypatch):
        monkeypatch.setattr("qkv.train.loop.MAX_NONFINITE_STEPS", 2)
        loss = "qkv.tasks.synthetic.recall.answer_loss"
        whole = answer_loss
        monkeypatch.setattr(loss, lambda m, t, s: whole(m, t, s) * (math.nan if _explodes else 1))
        _explodes = False

        def report(status):
            nonlocal _explodes
            _explodes = "rate 0.5" in status.description

        (record,) = recall(tmp_path, "softmax", rates=(0.5, 0.01), report=report).run()
        assert record["rate"] == 0.01
        assert [tried["rate"] for tried in record["rates"]] == [0.01, 0.5]
        assert "2 updates in a row were not finite" in record["failed"][0]
        (lost,) = recall(tmp_path / "all", "softmax", rates=(0.5,), report=report).run()
        assert (lost["figures"], lost["rate"], lost["seeds"]) == ({}, None, [])
        assert "no points yet" in (tmp_path / "all" / "compare.svg").read_text()

    def test_a_figure_that_is_no_number_does_not_end_it(self, tmp_path, monkeypatch):
        whole = tasks.RecallTask.evaluate
        monkeypatch.setattr(tasks.RecallTask, "evaluate", lambda *a, **s: {**whole(*a, **s), "perplexity": math.inf})
        records = recall(tmp_path, "softmax,linear").run()
        assert [set(record["figures"]) for record in records] == [{"accuracy", "scaled_accuracy"}] * 2
        assert json.loads((tmp_path / "compare.json").read_text())["finished"]

    def test_two_processes_do_not_train_the_same(self, tmp_path, monkeypatch):
        @contextmanager
        def taken(self):
            raise QkvError("another process is training in this run folder", self.folder)
            yield

        monkeypatch.setattr(Run, "lock", taken)
        with pytest.raises(QkvError, match=r"another process is training .*seed-0"):
            recall(tmp_path, "softmax").run()

    def test_other_settings_in_the_same_folder_raise(self, tmp_path):
        recall(tmp_path, "softmax").run()
        other = {**CHANGES, "train": {**CHANGES["train"], "batch_size": 5}}
        with pytest.raises(QkvError, match="a run with train.batch_size=4, but train.batch_size=5 is requested"):
            recall(tmp_path, "softmax", changes=other).run()

    def test_steps_measured_from_minutes_are_not_other_settings(self, tmp_path):
        train = {"batch_size": 4, "warmup": 1, "validate_every": 2, "minutes": 1e-4}
        changes = {**CHANGES, "train": train}
        recall(tmp_path, "softmax", changes=changes).run()
        run = tmp_path / "softmax" / "rate-0.01-seed-0"
        steps = json.loads((run / "config.json").read_text())["train"]["steps"]
        assert steps > 40
        (run / "model.safetensors").unlink()
        (again,) = recall(tmp_path, "softmax", changes=changes).run()
        assert again["figures"]["accuracy"]["mean"] >= 0
        assert json.loads((tmp_path / "compare.json").read_text())["trainings"][0]["steps"] == steps

    def test_impossible_data_raise(self, tmp_path):
        with pytest.raises(ValueError, match="vocabulary must be larger than length"):
            recall(tmp_path, "softmax", changes={**CHANGES, "data": {**TINY, "vocabulary": 8}}).run()

    def test_status(self, tmp_path):
        seen = []
        recall(tmp_path, "softmax,linear", seeds=2, rates=(0.01, 0.1), report=seen.append).run()
        trials = [status for status in seen if status.total]
        assert {status.total for status in trials} == {6}
        assert [status.done for status in trials] == sorted(status.done for status in trials)
        assert (trials[0].done, trials[-1].done) == (0, 6)


EIGHT_STEPS = {**CHANGES, "train": {**CHANGES["train"], "steps": 8, "warmup": 3, "validate_every": 4}}


class TestSearch:
    def search(self, folder, **settings):
        return recall(folder, "softmax", changes=EIGHT_STEPS, rates=(0.001, 0.01, 0.1), **settings)

    def test_rates_are_tried_on_short_trainings_and_every_seed_is_trained_whole(self, tmp_path):
        (record,) = self.search(tmp_path, seeds=2, search=0.25).run()
        kept = json.loads((tmp_path / "compare.json").read_text())["trainings"]
        assert [(t["search"], t["rate"], t["seed"], t["steps"]) for t in kept] == [
            *((True, rate, 0, 2) for rate in (0.001, 0.01, 0.1)),
            *((False, record["rate"], seed, 8) for seed in (0, 1)),
        ]
        assert [t["figures"] is not None for t in kept] == [False, False, False, True, True]
        assert [tried["rate"] for tried in record["rates"]] == [0.001, 0.01, 0.1]
        scores = {t["rate"]: t["held_out"] for t in kept if t["search"]}
        assert {tried["rate"]: tried["held_out"] for tried in record["rates"]} == scores
        assert scores[record["rate"]] == min(scores.values())
        assert record["seeds"] == [0, 1]
        config = json.loads((tmp_path / kept[0]["run"] / "config.json").read_text())["train"]
        assert (config["steps"], config["warmup"], config["validate_every"]) == (2, 1, 1)

    def test_a_stopped_search_continues(self, tmp_path, monkeypatch):
        train, trained = Loop.train, []

        def stop_at_the_third(loop):
            if len(trained) == 2:
                raise Interrupted(2)
            trained.append(loop.run.folder.name)
            return train(loop)

        monkeypatch.setattr(Loop, "train", stop_at_the_third)
        with pytest.raises(Interrupted):
            self.search(tmp_path, seeds=1, search=0.5).run()
        assert trained == ["search-rate-0.001-seed-0", "search-rate-0.01-seed-0"]
        monkeypatch.setattr(Loop, "train", lambda loop: trained.append(loop.run.folder.name) or train(loop))
        (record,) = self.search(tmp_path, seeds=1, search=0.5).run()
        assert trained[2:] == ["search-rate-0.1-seed-0", f"rate-{record['rate']:g}-seed-0"]

    def test_the_rules_say_what_was_done(self, tmp_path):
        comparison = self.search(tmp_path, seeds=2, search=0.25)
        assert comparison.rules() == []
        (record,) = comparison.run()
        *said, time = comparison.rules()
        assert said == [
            "learning rates: 3 tried for each candidate, with one seed over 25% of the length, "
            "chosen by held-out score",
            "seeds: 2 at the chosen learning rate",
            "equal tokens: each training learned from 48 queries",  # 4 rows x (2 pairs, 1 pair, ...) x 8 steps
            "chance: 50.00%",
        ]
        assert record["tokens"] == [48]
        assert time.endswith("minutes of training")
        assert json.loads((tmp_path / "compare.json").read_text())["rules"] == [*said, time]

    def test_what_is_not_fair_is_said(self):
        record = {"figures": {"accuracy": {}}, "seeds": [0], "chance": None, "unit": "words", "seconds": 90.0}
        records = [{**record, "tokens": [10]}, {**record, "tokens": [10, 30], "seeds": [0, 1]}]
        assert describe_rules(records, [[0.1], [0.1]], 0.25) == [
            "learning rates: one for each candidate, none was chosen: a comparison with one rate is no fair one",
            "seeds: 1 to 2 at the chosen learning rate",
            "tokens differ: trainings learned from 10 to 30 words",
            "chance: none",
            "time: 3.0 minutes of training",
        ]
        two = describe_rules(records, [[0.1, 0.2], [0.1, 0.2, 0.3]], 1.0)[0]
        assert two == (
            "learning rates: 2 to 3 tried for each candidate, with one seed over the whole length, "
            "chosen by held-out score; fewer than three are no fair choice"
        )

    def test_status_counts_the_search(self, tmp_path):
        seen = []
        recall(tmp_path, "softmax", seeds=2, rates=(0.01, 0.1), report=seen.append, search=0.5).run()
        assert {status.total for status in seen if status.total} == {4}
        assert "softmax, search, rate 0.01, seed 0" in {status.description for status in seen}


class TestStrings:
    def compare(self, folder, data, models, **settings):
        train = {"steps": 3, "batch_size": 8, "warmup": 1, "validate_every": 3}
        changes = {"model": {"max_length": 12}, "train": train, "data": data}
        task = tasks.tasks["pairs"].load(data)
        candidates = make_candidates("pairs", None, changes, Grid(models=models))
        return Comparison(task, candidates, folder, ComparisonSettings(1, (0.01,), **settings), lambda _: None)

    def test_families(self, tmp_path):
        models = "recurrent:attention=none;dim=6,encoder_decoder:dim=8;heads=2;hidden_dim=8;encoder_layers=1"
        comparison = self.compare(tmp_path / "out", write_pairs(tmp_path), models)
        for record in comparison.run():
            assert list(record) == KEYS
            metrics = ["sequence_error_rate", "token_error_rate", "jaccard", "cosine", "damerau_levenshtein"]
            assert list(record["figures"]) == metrics
            assert record["chance"] is None
            assert record["decode_tokens_per_second"] > 0
            assert record["state_bytes"] > 0
        assert comparison.caveat == "strings of at most 6 tokens: short strings are no evidence about long range"
        picture = (tmp_path / "out" / "compare.svg").read_text()
        assert "pairs: sequence error rate" in picture
        assert picture.count('class="bar"') == 2
        assert ">recurrent:attention=none;dim=6</text>" in picture

    def test_beams_next_to_greedy(self, tmp_path):
        """A beam of one is greedy, so its figures are known."""
        models = "encoder_decoder:dim=8;heads=2;hidden_dim=8;encoder_layers=1"
        (record,) = self.compare(tmp_path / "out", write_pairs(tmp_path), models, beam_sizes=(1, 3)).run()
        greedy = {name: spread for name, spread in record["figures"].items() if not name.startswith("beam_")}
        assert len(greedy) == 5
        assert {name: record["figures"][f"beam_1_{name}"] for name in greedy} == greedy
        assert {f"beam_3_{name}" for name in greedy} <= set(record["figures"])

    def test_without_a_test_file_it_says_so(self, tmp_path):
        data = {"train_file": write_pairs(tmp_path)["train_file"]}
        comparison = self.compare(tmp_path / "out", data, "recurrent:attention=none;dim=6")
        (record,) = comparison.run()
        assert record["split"] == "valid"
        assert "no test pairs" in comparison.caveat

    def test_long_strings_need_no_warning(self, tmp_path):
        (tmp_path / "long.tsv").write_text("".join(f"{c * 520}\tX\n" for c in "abc"))
        data = {"train_file": str(tmp_path / "long.tsv"), "test_file": str(tmp_path / "long.tsv")}
        assert self.compare(tmp_path, data, "recurrent").caveat == ""
