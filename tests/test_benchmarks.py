"""The benchmark scripts: what can be said of them without running them for minutes."""

import argparse
import json
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import torch

from benchmarks import (
    compare_pronounce,
    compare_recall,
    detection_encoder,
    more_words,
    pronounce_recipe,
    text_wikitext,
    word_vectors,
)
from benchmarks.comparison import write_result
from qkv import runs, tasks
from qkv.compare.candidates import Grid, make_candidates
from qkv.compare.comparison import Comparison, ComparisonSettings
from qkv.layers import pack_documents
from qkv.models import family
from tests.tasks.tiny import CHANGES, TINY, write_pairs

OTHERS = {"device": "cpu", "steps": None, "processes": 7, "graphs": False}


@pytest.mark.parametrize(("choice", "contestants"), [("ablation", 5)])
def test_every_choice_can_compete(tmp_path, choice, contestants):
    given = argparse.Namespace(choice=choice, out=tmp_path / "out", **write_pairs(tmp_path), **OTHERS)
    comparison = compare_pronounce._comparison(given)
    configs = [one.config for one in comparison.candidates]
    assert len(configs) == contestants
    assert len({(config.train.steps, config.train.batch_size) for config in configs}) == 1
    assert all(config.train.minutes is None for config in configs)
    assert {config.model["dropout"] for config in configs} == {0.1}
    transformers = [config.model for config in configs if config.family == "encoder_decoder"]
    assert [model.pop("attention") for model in transformers] == ["softmax", "taylor", "linear"]
    assert transformers[0] == transformers[1] == transformers[2]
    said = compare_pronounce._said(given)["command"]
    assert f"--set train.steps={configs[0].train.steps}" in said
    assert "train.tsv --test-file test.tsv" in said
    assert str(tmp_path) not in said


def test_what_is_there_is_not_done_again(tmp_path):
    comparison = SimpleNamespace(folder=tmp_path, candidates=[SimpleNamespace(name="a:b=1"), SimpleNamespace(name="c")])
    work = [compare_pronounce.Work(place, 0.002, seed) for place in (0, 1) for seed in (0, 1)]
    done = tmp_path / "a_b=1" / "rate-0.002-seed-1"
    done.mkdir(parents=True)
    (done / "figures.json").touch()
    assert compare_pronounce._missing(work, comparison, "figures.json") == [work[0], *work[2:]]


def test_a_result_file_says_how_it_was_made(tmp_path):
    contestants = make_candidates("recall", None, CHANGES, Grid("linear"))
    comparison = Comparison(
        tasks.tasks["recall"].load(TINY),
        contestants,
        tmp_path / "out",
        ComparisonSettings(2, (0.01, 0.02), search_fraction=1.0),
        lambda _: None,
    )
    comparison.run()
    write_result(tmp_path / "new" / "result.json", comparison, command="some command")
    kept = json.loads((tmp_path / "new" / "result.json").read_text())
    assert {"format", "date", "machine", "versions", "command", "task", "split", "note"} <= set(kept)
    assert [tried["rate"] for tried in kept["records"][0]["rates"]] == [0.01, 0.02]
    seeds = [training["seed"] for training in kept["trainings"] if training["figures"]]
    assert seeds == kept["records"][0]["seeds"] == [0, 1]
    table = compare_recall.table(kept["records"])
    spread = kept["records"][0]["figures"]["accuracy"]
    assert f"| `linear` | {100 * spread['mean']:.1f} % |" in table
    assert table.endswith("| chance | 50.0 % | | |")


def test_the_pupil_waits_for_its_teachers(tmp_path, monkeypatch):
    """Each with a seed of its own; the command that is kept names no folder."""
    words = ["--train-file", str(tmp_path / "a.tsv"), "--test-file", str(tmp_path / "b.tsv"), "--teachers", "3"]
    places = ["--out", str(tmp_path / "out"), "--result", str(tmp_path / "r.json")]
    more = ["--more=--workers 1", "--teacher-more=--set model.dim=320", "--pupil-more=--compile", "--graphs"]
    monkeypatch.setattr("sys.argv", ["pronounce_recipe", "standard", *words, *places, *more])
    given = pronounce_recipe._parse()
    *teachers, pupil = pronounce_recipe.trainings(given)
    assert [one.command[one.command.index("--seed") + 1] for one in teachers] == ["0", "1", "2"]
    assert pupil.needs == tuple(one.result for one in teachers)
    assert any(part.count(str(tmp_path / "out" / "teacher-")) == 3 for part in pupil.command)
    for one in teachers:
        assert one.command[-6:] == ("--graphs", "--workers", "1", "--set", "model.dim=320", "--json")
    assert pupil.command[-5:] == ("--graphs", "--workers", "1", "--compile", "--json")
    assert str(tmp_path) not in pronounce_recipe._command(given)
    assert "--train-file=a.tsv" in pronounce_recipe._command(given)
    assert "--graphs --more='--workers 1' --teacher-more='--set model.dim=320'" in pronounce_recipe._command(given)


def test_teachers_may_differ(tmp_path, monkeypatch):
    words = ["--train-file", "a.tsv", "--test-file", "b.tsv", "--teachers", "3", "--pupil-steps", "0"]
    places = ["--out", str(tmp_path / "out"), "--result", str(tmp_path / "r.json")]
    more = ["--teacher-more=--set model.dim=320", "--teacher-more=--set model.dropout=0.3"]
    monkeypatch.setattr("sys.argv", ["pronounce_recipe", "standard", *words, *places, *more])
    given = pronounce_recipe._parse()
    told = [one.command[-2] for one in pronounce_recipe.trainings(given)]
    assert told == ["model.dim=320", "model.dropout=0.3", "model.dim=320"]
    assert "--teacher-more='--set model.dim=320' --teacher-more='--set model.dropout=0.3'" in pronounce_recipe._command(
        given
    )


def test_all_are_measured_alone_and_the_teachers_together(tmp_path, monkeypatch):
    places = ["--test-file", "b.tsv", "--out", str(tmp_path), "--result", str(tmp_path / "r.json")]
    monkeypatch.setattr("sys.argv", ["pronounce_recipe", "bundled", *places, "--teachers", "2", "--device", "cpu"])
    given = pronounce_recipe._parse()
    found, joints = pronounce_recipe.evaluations(given), pronounce_recipe.joints(given)
    assert len({one.result for one in found}) == len(found) == (2 + 1 + 1) * 3 * 2
    assert next(one.name for one in found if "--with" in one.command) == "teacher-0+teacher-1-greedy-stress"
    for one in found:
        assert one.command[-3:] == ("--device", "cpu", "--json")
        joined = [path for path in one.needs if path.suffix == ".bin"]
        assert len(one.needs) == 1 + one.command.count("--with") + len(joined)
        assert [work.result for work in joints if str(work.result) in one.command] == joined
        assert bool(joined) == ("-joint-" in one.name)
    assert len({work.result for work in joints}) == len(joints) == 4


def test_the_gpt2_beside_ours_is_of_equal_size_and_keeps_documents_apart():
    sizes = {"dim": 24, "heads": 3, "hidden_dim": 48, "layers": 2, "max_length": 32}
    config = runs.configure("text", runs.preset("text", "wikitext"), {"model": sizes})
    own = family("decoder")
    peer = text_wikitext.Gpt2(config, 53, packed=True).double().eval()
    ours = own.build(own.configure(config.model), 53)
    assert sum(p.numel() for p in peer.parameters()) == sum(p.numel() for p in ours.parameters())
    tokens, starts = torch.randint(4, 53, (2, 19)), torch.zeros(2, 19, dtype=torch.bool)
    starts[0, 7] = True
    packed = peer(tokens, packing=pack_documents(starts))
    alone = torch.cat([peer(part[None])[0] for part in (tokens[0, :7], tokens[0, 7:], tokens[1])])
    torch.testing.assert_close(packed.flatten(0, 1), alone, rtol=0, atol=1e-12)


def test_the_sweep_of_the_encoder_is_written_point_by_point_and_drawn(tmp_path, monkeypatch):
    file, drawn = tmp_path / "result.json", tmp_path / "picture.svg"
    seen = []

    def measured(kind, canvas, batch, device):
        seen.append(len(json.loads(file.read_text())["rows"]) if file.exists() else 0)
        tokens = (canvas // 8) ** 2
        return {"kind": kind, "canvas": canvas, "tokens": tokens, "forward_ms": 1.0, "both_ms": 3.0, "both_mib": 7.0}

    monkeypatch.setattr(detection_encoder, "measure_encoder", measured)
    monkeypatch.setattr("sys.argv", ["detection_encoder", "--result", str(file), "--canvases", "32,128"])
    detection_encoder.main()
    assert seen == list(range(8))
    record = json.loads(file.read_text())
    assert "| 256 | 1.00 / 3.00, 7 | 1.00 / 3.00, 7 |" in detection_encoder.table(record)
    monkeypatch.setattr("sys.argv", ["detection_encoder", "--result", str(file), "--draw", str(drawn)])
    detection_encoder.main()
    root = ElementTree.parse(drawn).getroot()
    charts = root.findall("{http://www.w3.org/2000/svg}svg")
    assert [chart.get("y") for chart in charts] == ["0", "360", "720"]


def test_the_encoder_is_measured():
    row = detection_encoder.measure_encoder("elu", 64, 1, "cpu")
    assert (row["kind"], row["tokens"]) == ("elu", 64)
    assert min(row["forward_ms"], row["both_ms"], row["forward_mib"]) > 0
    assert row["both_mib"] > row["forward_mib"]


def test_word_vectors_are_summed_up_and_gone_on_with(tmp_path):
    """Three seeds by hand: ratios 2, 4 and 3; the deviation of 0.1, 0.2, 0.3 is 0.1."""
    kept = word_vectors.Kept(tmp_path / "result.json", words=7, epochs=5, seeds=4)
    for seed, (ours, theirs) in enumerate(((2.0, 1.0), (4.0, 1.0), (6.0, 2.0)), 1):
        for name, rate in (("qkv", ours), ("gensim", theirs)):
            rates = {f"words_per_{which}_second": rate for which in word_vectors.CLOCKS}
            kept.add("cbow", name, {"seed": seed, "spearman": seed / 10, "pairs": 5, **rates})
    kept.write()
    again = word_vectors.Kept(tmp_path / "result.json", words=7, epochs=5, seeds=4)
    again.write()
    assert (again.missing("cbow"), again.missing("skip_gram")) == ([4], [1, 2, 3, 4])
    assert word_vectors.Kept(tmp_path / "result.json", words=8, epochs=5, seeds=1).missing("cbow") == [1]
    table = word_vectors.table(json.loads((tmp_path / "result.json").read_text()))
    assert table.endswith("| `cbow` | 0.200 ± 0.100 | 0.200 ± 0.100 | 3 | 3.00 |")


def test_the_table_of_word_vectors_is_that_of_the_result_file():
    page = Path(__file__).parent.parent / "docs" / "words.md"
    record, text = json.loads(word_vectors.RESULTS.read_text()), page.read_text()
    assert word_vectors.table(record) in text
    rows = [row for objective in word_vectors.OBJECTIVES for who in word_vectors.WHO for row in record[objective][who]]
    assert {row["pairs"] for row in rows} == {305}
    assert "on the 305 of 353 pairs whose words both have vectors" in text
    assert f"gensim {record['gensim']}" in text


def test_words_without_pronunciations_are_whole_and_come_once(tmp_path, monkeypatch):
    lists = {"dist.all.last": "SMITH 1.006 1.006 1\nO 0.1 1.1 2", "dist.female.first": "MARY 2.6 2.6 1"}
    monkeypatch.setattr(
        more_words, "read_archive_member", lambda _, name: lists.get(name.rsplit("/", 1)[1], "").encode()
    )
    texts = {"train": ["Mary's 3rd café, mp3 and Über-smith; foo_bar it"], "test": ["Apple apple"]}
    monkeypatch.setattr(more_words, "read_corpus", lambda name: texts)
    file = tmp_path / "words.txt"
    monkeypatch.setattr("sys.argv", ["more_words", str(file)])
    more_words.main()
    assert file.read_text().split() == ["smith", "o", "mary", "and", "foo", "bar", "apple"]
    monkeypatch.setattr("sys.argv", ["more_words", str(tmp_path / "no" / "words.txt")])
    with pytest.raises(SystemExit, match="there is no folder"):
        more_words.main()
