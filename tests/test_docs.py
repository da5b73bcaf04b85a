"""Code in documents runs, and figures in documents equal the result files."""

import json
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
from typer.main import get_command

from benchmarks import (
    attention_gpu,
    batch_inference,
    compare_pronounce,
    detection_encoder,
    digits_cpu,
    evidence_cpu,
    mesh_training,
    plan,
    pronounce_peers,
    rank_failures,
    sequence_parallel,
    states_page,
    text_speed_cpu,
    text_wikitext,
    training_cpu,
    workbench,
)
from benchmarks.attention_cpu import RESULTS, table
from benchmarks.compare_recall import RESULTS as RECALL
from benchmarks.compare_recall import table as recall_table
from docs.generate.menu import menu
from examples.attention_picture import picture
from qkv.cli import app
from qkv.train import Settings
from qkv.train.parallel.mesh import parse_mesh

ROOT = Path(__file__).parent.parent
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


def blocks(path):
    return re.findall(r"```python\n(.*?)```", path.read_text(), re.S)


def test_detection_page_has_the_figures_of_its_result_files():
    page = " ".join((ROOT / "docs" / "detection.md").read_text().split())
    systems = json.loads((RESULTS.parent / "detection_cards_h200.json").read_text())["systems"]
    for name, system in (("`qkv train detect --preset photos`", "ours"), ("torchvision 0.26 `FasterRCNN`", "peer")):
        found = systems[system]
        low, high = found["ap50_interval"]
        row = (
            f"| {name} | {found['seconds']:.0f} | {found['passes']:.0f} "
            f"| {found['ap50']:.3f} ({low:.3f} to {high:.3f}) | {found['mean_ap']:.3f} "
            f"| {found['ms_per_picture']:.1f} |"
        )
        assert row in page
    found = json.loads((RESULTS.parent / "detection_cards_cpu.json").read_text())["systems"]["ours"]
    low, high = found["ap50_interval"]
    assert f"AP50 {found['ap50']:.3f} ({low:.3f} to {high:.3f}), mAP {found['mean_ap']:.3f}" in page
    assert f"after {found['seconds']:.0f} seconds, {found['passes']:.1f} passes" in page
    assert f"{found['ms_per_picture']:.1f} ms per picture" in page
    compared = json.loads((RESULTS.parent / "detection_scenes_cpu.json").read_text())
    assert f"in {compared['minutes']:.1f} minutes" in page
    for record in compared["comparison"]:
        found = {name: spread["mean"] for name, spread in record["figures"].items()}
        row = (
            f"| `{record['contestant']}` | {found['ap50']:.3f} | {found['mean_ap']:.3f} | {found['proposals']:.0f} "
            f"| {found['ms_per_picture']:.1f} |"
        )
        assert row in page
    test = json.loads((RESULTS.parent / "detection_scenes_h200.json").read_text())["test"]
    for figure in (
        f"AP50 {test['ap50']:.3f}, mAP {test['mean_ap']:.3f}",
        f"Ceilings: {test['proposal_recall_50']:.3f} of the objects",
        f"{100 * test['true_box_accuracy']:.1f} % of the true boxes",
    ):
        assert figure in page


def test_detection_page_has_the_figures_of_selective_search():
    page = (ROOT / "docs" / "detection.md").read_text()
    systems = json.loads((RESULTS.parent / "selective_search_cpu.json").read_text())["systems"]
    for name, system in (("`selective_search`", "ours"), ("OpenCV, compiled C++", "opencv")):
        found = systems[system]
        recalls = f"{found['recall_50']:.3f} | {found['recall_70']:.3f}"
        assert f"| {name} | {recalls} | {found['proposals']:.0f} | {found['ms']:.0f} |" in page


def test_detection_page_has_the_figures_of_detr():
    page = (ROOT / "docs" / "detection.md").read_text()
    test = json.loads((RESULTS.parent / "detection_detr_h200.json").read_text())["test"]
    assert len(test) == 3
    for kind, found in test.items():
        assert f"| `{kind}` | {found['ap50']:.3f} | {found['mean_ap']:.3f} | {found['ap75']:.3f} |" in page
    assert detection_encoder.table(json.loads((RESULTS.parent / "detection_encoder_h200.json").read_text())) in page


def test_pages_have_the_figures_of_gates_and_delta():
    kernels, delta = (
        " ".join((ROOT / "docs" / name).read_text().split()) for name in ("kernels.md", "attention/delta.md")
    )
    for row in json.loads((RESULTS.parent / "gates_h200.json").read_text())["rows"]:
        times = f"{row['ungated']:.2f} | {row['gated']:.2f} | {row['ratio']:.2f}"
        assert f"| `{row['kind']}` | {row['pass']} | {times} |" in kernels
    timed = json.loads((RESULTS.parent / "delta_h200.json").read_text())
    for name, shape in (("X", "8 x 16 x 8,192"), ("Z", "1 x 4 x 131,072")):
        for dim in (64, 128):
            found = timed.get(f"fastest {name} {dim}") or timed[f"time {name} {dim}"]
            times = f"{found['forward']:.2f} | {found['with backward']:.2f} | {found['peak GiB']:.2f}"
            assert f"| {shape}, d {dim} | {times} |" in kernels
    measured = json.loads((RESULTS.parent / "delta_cpu.json").read_text())
    peer, softmax = (
        measured["gated delta rule, qkv and transformers"],
        measured["gated delta rule and softmax (SDPA), forward"],
    )
    forward, both = peer["forward"], peer["forward and backward"]
    assert f"{forward['speedup']:.2f} times as fast as the torch code of transformers" in delta
    assert f"{both['speedup']:.2f} times with backward" in delta
    assert f"in {forward['memory_ratio']:.3f} and {both['memory_ratio']:.3f} of its memory" in delta
    assert f"it is {softmax['speedup']:.2f} times as fast as softmax attention" in delta


def test_pages_have_the_figures_of_states_and_serving():
    results, text, serving = ((ROOT / "docs" / name).read_text() for name in ("results.md", "text.md", "serving.md"))
    assert states_page.streams_table(states_page.read("states_streams_cpu")) in results
    assert states_page.prefix_table(states_page.read("states_prefix_cpu")) in results
    speculative = states_page.read("states_speculative_cpu")
    assert speculative["passed"]
    assert states_page.speculative_table(speculative) in results
    for part in text_speed_cpu.table(states_page.read("text_speed_cpu")).split("\n\n"):
        assert part in text
    load = states_page.read("api_load_cpu")["delta"]
    overload, streams = load["overload"], load["streams"]
    assert set(overload["during"]["statuses"]) == {"200", "429"}
    assert f"{overload['part_of_capacity']:.0%} of the capacity answered" in serving
    assert f"{overload['p99_over_alone']:.1f} times that of a single client" in serving
    assert f"{streams['tokens_per_second']:,.0f} tokens/s; {streams['ratio']:.1f} times one at a time" in serving
    assert ", ".join(f"{x:.0f}" for x in streams["peak_mib_by_wave"]) in serving
    soak = load["soak"]
    assert (soak["wrong"], set(soak["left_in_use"].values())) == (0, {0.0})
    answers = soak["requests"]["streamed"] + soak["requests"]["whole"]
    assert f"soak of {soak['minutes']:g} minutes, {soak['clients']} clients | {answers:,} answers" in serving


def test_the_bytes_of_sequence_parallel_are_those_of_the_result_file():
    page = (ROOT / "docs" / "sequence_parallel.md").read_text()
    found = json.loads(sequence_parallel.RESULTS.read_text())
    assert sequence_parallel.table(found) in page
    rows = [row for processes in (2, 4) for row in found[f"{processes} processes"]["bytes"].values()]
    assert len(rows) == 2 * len(sequence_parallel.KINDS)
    pairs = [pair for row in rows for pair in row.values()]
    assert [pair["counted"] for pair in pairs] == [pair["formula"] for pair in pairs]
    for processes in (2, 4):
        assert max(found[f"{processes} processes"]["largest difference"].values()) < 1e-12


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if blocks(path)], ids=lambda path: path.name)
def test_python_in_documents_runs(path, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec("\n".join(blocks(path)), {})  # an example that raises fails, its own asserts included


def test_pages_have_blocks_to_run():
    assert len(blocks(ROOT / "README.md")) >= 4
    assert len(blocks(ROOT / "docs" / "tutorial.md")) == 2
    pages = [path for path in DOCUMENTS if blocks(path)]
    assert {path.parent.name for path in pages} == {ROOT.name, "docs", "attention", "positions"}
    assert len(pages) >= 20


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    targets = re.findall(r"\]\((?!http)([^)#]+)", path.read_text())
    assert [target for target in targets if not (path.parent / target).exists()] == []


def test_the_speed_table_is_that_of_the_result_file():
    result, text = json.loads(RESULTS.read_text()), (ROOT / "docs" / "results.md").read_text()
    assert table(result) in text
    assert f"on {result['machine']['threads']} cores of an {result['machine']['cpu']}:" in text
    assert 8 * 32768 * 64 * 4 == 64 * 2**20  # heads, tokens, value_dim, bytes: the output
    assert min(row["peak_bytes"] for row in result["forward"] if row["tokens"] == 32768) >= 64 * 2**20


@pytest.mark.parametrize("path", ["README.md", "docs/attention/softmax.md"])
def test_where_softmax_is_overtaken_is_what_was_measured(path):
    words = " ".join((ROOT / path).read_text().split())
    races = json.loads((RESULTS.parent / "cost_time.json").read_text())["crossovers"]["held_out"]
    for kind, said in (("linear", "`linear` overtakes softmax at"), ("elu", "`elu` at"), ("taylor", "`taylor` at")):
        lengths = sorted(race["measured_n"] for race in races if race["race"].startswith(kind))
        assert len(lengths) == 2
        assert f"{said} {lengths[0]:,.0f} to {lengths[1]:,.0f}" in words


def test_the_tables_of_the_kernels_are_those_of_the_result_file():
    result = json.loads((RESULTS.parent / "attention_gpu_h200.json").read_text())
    assert attention_gpu.table(result, ("X", "Y", "Z")) in (ROOT / "docs" / "results.md").read_text()
    page = " ".join((ROOT / "docs/kernels.md").read_text().split())
    for table_of in (attention_gpu.table, attention_gpu.error_table, attention_gpu.decode_table):
        assert " ".join(table_of(result).split()) in page
    peaks = {row["name"]: row["peak_mib"] for row in result["rows"] if row["shape"] == "X"}
    assert f"holds at most {peaks['qkv taylor, key_dim 16']:,.0f} MiB" in page
    assert f"({peaks['fla fused_chunk_based']:,.0f} by `fused_chunk_based`)" in page
    assert (ROOT / "docs" / "images" / "attention_gpu.svg").read_text() == attention_gpu.picture(result)


def test_the_ablation_is_that_of_the_result_file_and_attention_is_what_it_is_said_to_be_worth():
    result = json.loads((RESULTS.parent / "pronounce_lstm_transformer_gpu.json").read_text())
    assert compare_pronounce.table(result["records"]) in (ROOT / "docs" / "results.md").read_text()
    assert result["machine"]["gpu"] == "NVIDIA H200"
    page = " ".join((ROOT / "docs" / "results.md").read_text().split())
    sizes = [f"{record['parameters'] / 1e6:.1f}" for record in result["records"]]
    lstms, transformers = " and ".join(sizes[:2]), {*sizes[2:]}
    assert f"the LSTMs have {lstms} million parameters, the Transformers {transformers.pop()}" in page
    assert not transformers
    without, additive, softmax, taylor, linear = (record["figures"] for record in result["records"])
    for similarity in ("jaccard", "cosine", "damerau_levenshtein"):
        assert without[similarity]["high"] < additive[similarity]["low"]
    assert additive["sequence_error_rate"]["high"] < without["sequence_error_rate"]["low"]
    for kind in (taylor, linear):
        assert abs(kind["sequence_error_rate"]["mean"] - softmax["sequence_error_rate"]["mean"]) < 0.01
    for record in result["records"]:
        assert record["seeds"] == [0, 1, 2]
        assert [tried["rate"] for tried in record["rates"]] == [0.002, 0.004, 0.008]
        assert record["rate"] == 0.004  # the middle one: neither end of what was tried


def test_the_language_models_are_those_of_the_result_file():
    result = json.loads((RESULTS.parent / "text_wikitext_gpu.json").read_text())
    page = " ".join((ROOT / "docs" / "text.md").read_text().split())
    assert " ".join(text_wikitext.table(result["records"]).split()) in page
    assert text_wikitext.ratios(result["records"]) == result["softmax_over_peer"]
    beside = result["softmax_over_peer"]["transformers"]
    assert f"{beside['word_perplexity']:.3f} times the perplexity per word of" in page
    assert f"{beside['tokens_per_second']:.2f} times its tokens per second" in page
    assert result["command"] in page
    assert f"(whose test split then has {result['records']['softmax']['test']['words']:,} words)" in page
    learned = {record["steps"] for record in result["records"].values()}
    assert {f"{steps:,} updates of 32 rows" in page for steps in learned} == {True}


def test_the_figures_of_the_quick_preset_are_those_of_the_result_file():
    quick = json.loads((RESULTS.parent / "pronounce_quick_cpu.json").read_text())["figures"]["test beam 4"]
    expected = f"| {100 * quick['sequence_error_rate']:.1f} % | {100 * quick['token_error_rate']:.1f} % |"
    assert expected in (ROOT / "docs" / "results.md").read_text()


def test_the_other_pronouncers_are_those_of_the_result_file():
    result = json.loads((RESULTS.parent / "pronounce_peers.json").read_text())
    text = (ROOT / "docs" / "pronounce.md").read_text()
    assert pronounce_peers.table(result) in text
    assert {f"{row['words']:,}" for row in result["systems"].values()} == {"11,996"}
    assert "\n11,996 words (" in text


def test_the_figures_of_the_large_preset_are_those_of_the_result_file():
    result = json.loads((RESULTS.parent / "pronounce_standard_gpu.json").read_text())
    rows, trained = result["figures"], result["training"]["teacher-3"]
    spent = f"{trained['updates']:,} updates in {trained['seconds_of_updates'] / 60:.0f} minutes on an H200"
    assert "on an NVIDIA H200, teacher-3 alone on it" in result["note"]
    page = (ROOT / "docs" / "results.md").read_text()
    assert f"| preset `large`, {spent}, beam 10 (" in page
    wide = {(row["members"][-1], len(row["members"]), "joint" in row): row for row in rows if row["beams"] == 10}
    named = {
        "`pronounce_standard_gpu.json`) |": ("teacher-3", 1, False),
        "| the same, with `qkv joint` |": ("teacher-3", 1, True),
        "| an ensemble of it and three others, with `qkv joint` |": ("teacher-3", 4, True),
    }
    for name, key in named.items():
        wrong, phones = (100 * wide[key][rate] for rate in ("wer", "per"))
        assert f"{name} {wrong:.1f} % | {phones:.1f} % |" in page


def test_the_evidence_is_that_of_the_result_file():
    result, page = json.loads(evidence_cpu.RESULTS.read_text()), (ROOT / "docs" / "evidence.md").read_text()
    assert list(result["comparisons"]) == [question.task for question in evidence_cpu.QUESTIONS]
    for question in evidence_cpu.QUESTIONS:
        found = result["comparisons"][question.task]
        assert evidence_cpu.table(result, question.task) in page
        assert found["command"] == question.command
        assert found["command"] in page
        assert {tuple(record["seeds"]) for record in found["records"]} == {(0, 1, 2)}
        assert {len(record["rates"]) for record in found["records"]} == {3}
        assert len({tuple(record["tokens"]) for record in found["records"]}) == 1
    assert (ROOT / "docs" / "images" / "evidence_parity.svg").read_text() == evidence_cpu.picture(result)


def test_what_is_said_of_the_evidence_is_so():
    records = json.loads(evidence_cpu.RESULTS.read_text())["comparisons"]["parity"]["records"]
    scaled = {record["contestant"]: record["figures"]["scaled_accuracy"] for record in records}
    negative = scaled.pop("delta+write(largest=2)")
    mean, low, high = (f"{negative[name]:.2f}" for name in ("mean", "low", "high"))
    page = " ".join((ROOT / "docs" / "evidence.md").read_text().split())
    assert f"the scaled accuracy over the four lengths is {mean} ({low} to {high})" in page
    assert [record["rate"] for record in records] == [0.03, 0.01, 0.01, 0.03]
    delta, *_, softmax = (record["state_bytes"] for record in records)
    assert f"with {softmax / delta:.0f} times the bytes of state" in page
    assert set(scaled) == {"delta+write", "linear", "softmax"}
    assert max(spread["mean"] for spread in scaled.values()) <= 0.05


def test_the_recall_table_is_that_of_the_result_file():
    result, page = json.loads(RECALL.read_text()), (ROOT / "docs" / "results.md").read_text()
    assert recall_table(result["records"]) in page
    assert result["command"] in page


def test_recall_follows_the_size_of_the_state():
    """Softmax and Taylor with key_dim 16 recall nearly everything, linear less, Taylor with key_dim 8 least."""
    records = {record["contestant"]: record for record in json.loads(RECALL.read_text())["records"]}
    ranked = [records[name] for name in ("taylor:key_dim=8", "linear", "taylor:key_dim=16", "softmax:key_dim=16")]
    assert [len(record["seeds"]) for record in ranked] == [3] * 4
    assert [len(record["rates"]) for record in ranked] == [3] * 4
    few, linear, many, softmax = (record["figures"]["accuracy"] for record in ranked)
    assert softmax["low"] >= 0.99
    assert many["low"] >= 0.95
    assert few["high"] < linear["low"] < linear["high"] < many["low"]
    assert few["mean"] < 0.8
    assert [r["state_bytes"] for r in ranked] == sorted(r["state_bytes"] for r in ranked)


def test_the_picture_is_what_the_example_draws():
    committed = (ROOT / "docs" / "attention.svg").read_text()
    assert committed == picture()  # numbers have few digits: the same on processors of any make
    assert len(re.findall(r": (-?\d+\.\d+)</title>", committed)) == 5 * 11 * 11


def test_only_chosen_dependencies():
    """Every dependency has a reason in the docs, and every reason belongs to a dependency."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    names = {re.match(r"[\w-]+", one)[0] for one in asked} - {project["name"]}  # the extra `all`
    cells = re.findall(r"^\| ([\w, -]+) \| ", (ROOT / "docs" / "dependencies.md").read_text(), re.M)
    assert {name for cell in cells for name in cell.split(", ")} - {"package"} == names


def test_the_masked_figures_are_those_of_the_result_file():
    result = json.loads((RESULTS.parent / "masked_wikitext.json").read_text())
    words = " ".join((ROOT / "docs/masked.md").read_text().split())
    test, minutes = result["figures"]["test"], result["seconds"] / 60
    for said in (
        f"predicts {100 * test['masked_accuracy']:.1f} % of the masked tokens",
        f"the best constant: {100 * test['unigram_accuracy']:.1f} %",
        f"classifies {100 * test['next_sentence_accuracy']:.1f} % of the pairs correctly",
        f"after {result['steps']:,} updates in {minutes:.1f} minutes",
        f"On {test['examples']:,} pairs of the test split",
        "python -m benchmarks.masked_wikitext --device cuda --minutes 6",
    ):
        assert said in words


@pytest.mark.parametrize(
    ("page", "benchmark"),
    [
        ("training", training_cpu),
        ("classification", digits_cpu),
        ("workbench", workbench),
        ("scale", rank_failures),
        ("scale", batch_inference),
    ],
    ids=lambda it: it if isinstance(it, str) else it.__name__,
)
def test_the_speeds_of_a_page_are_those_of_the_result_file(page, benchmark):
    result = json.loads(benchmark.RESULTS.read_text())
    assert benchmark.table(result) in (ROOT / "docs" / f"{page}.md").read_text()


def test_every_failure_of_a_rank_ends_the_job_within_a_minute_with_its_cause():
    found = {one["failure"]: one for one in json.loads(rank_failures.RESULTS.read_text())["failures"]}
    assert found.keys() == rank_failures.FAILURES.keys()
    assert max(one["seconds"] for one in found.values()) < 60
    assert all(one["exit_code"] != 0 for one in found.values())
    assert all(one["rank_0"].startswith("qkv: rank 0: rank 1 ") for one in found.values())
    silent = {"is killed", "hangs in native code"}
    assert {name for name, one in found.items() if not one["rank_1"].startswith("qkv: rank 1, step 30: ")} == silent


def test_what_is_said_of_training_speed_is_so():
    faster = json.loads(training_cpu.RESULTS.read_text())["qkv_is_faster_by"]
    alike, random = faster["nn.Transformer, bucketed"], faster["nn.Transformer, in random order"]
    assert 1 < alike < 1.2 < random / alike
    result = json.loads(digits_cpu.RESULTS.read_text())
    assert (result["batch"], result["rounds"]) == (256, 30)


def test_the_figures_of_all_digits_are_those_of_the_result_file():
    result = json.loads((RESULTS.parent / "digits_whole_cpu.json").read_text())
    words = " ".join((ROOT / "docs" / "classification.md").read_text().split())
    test = result["figures"]["test"]
    assert f"classifies {100 * test['accuracy']:.1f} % of the {test['examples']:,} test digits correctly" in words
    assert f"{result['steps']:,} updates on 55,000 digits, {result['parameters']:,} parameters" in words
    assert f"{result['processor_minutes']:.1f} minutes of CPU time" in words
    assert f"{result['minutes_in_all']:.1f} minutes of wall time" in words
    assert "55,000 digits to train on" in result["data"]


def test_the_plans_are_those_of_the_result_file():
    result = json.loads(plan.RESULTS.read_text())
    page = (ROOT / "docs" / "scale.md").read_text()
    hybrid = plan.EXAMPLE_KINDS[1]
    for table_of in (plan.example_table(result), plan.measured_table(result), plan.terms_table(result, hybrid)):
        assert table_of in page
    words = " ".join(page.split())
    plans = {found["attention"]: found for found in result["examples"]}
    floors = [found["recompute"]["true"]["time"]["floor_seconds"] for found in plans.values()]
    assert f"the step {floors[0] / floors[1]:.1f} times faster at the floor" in words
    assert f"`linear` alone {floors[0] / floors[2]:.0f} times" in words
    states = next(one for one in plans[hybrid]["traffic"] if one["name"] == "sequence: states, forward")
    assert f"states are {states['bytes_sent'] / 1e9:.1f} GB per pass for {states['calls']} layers" in words
    assert (
        f"for {len(result['saved'])} runs of {len({one['kind'] for one in result['saved']})} attention kinds" in words
    )
    rows = [row for one in (*result["meshes"], *result["saved"]) for row in one["rows"].items()]
    assert {row["ratio"] for name, row in rows if not name.startswith("peak")} == {1}
    assert min(row["ratio"] for name, row in rows if name.startswith("peak")) > 1
    assert f"{result['examples'][0]['parameters']['all'] / 1e9:.1f} billion parameters" in words
    assert {one["recompute"][again]["fits"] for one in plans.values() for again in ("false",)} == {False}
    assert {one["recompute"]["true"]["fits"] for one in plans.values()} == {True}


def test_the_meshes_are_those_of_the_result_file():
    result = json.loads(mesh_training.RESULTS.read_text())
    page = (ROOT / "docs" / "scale.md").read_text()
    assert mesh_training.table(result) in page
    words, kills = " ".join(page.split()), result["kills"]
    assert f"{result['steps']} steps" in words
    assert f"In {kills['killed']} of {kills['trainings']} trainings" in words
    assert kills["finished"] == kills["trainings"]
    assert kills["largest difference of losses"] <= 1e-5
    assert max(mesh_training.largest(row["float64"]) for row in result["meshes"]) <= 1e-12
    assert max(mesh_training.largest(row["float32"]) for row in result["meshes"]) <= 1e-5
    assert max(mesh_training.largest(row["difference"]) for row in result["resumed"]) <= 1e-12
    for row in result["meshes"]:
        shards = parse_mesh(row["mesh"]).parameter_shards
        assert max(row["largest share"].values()) <= 1.1 / shards


@pytest.mark.slow
def test_the_plans_are_made_again():
    result = json.loads(plan.RESULTS.read_text())
    assert json.loads(json.dumps(plan.examples())) == result["examples"]


def test_the_first_page_links_to_all_others_by_their_titles():
    text = " ".join((ROOT / "docs" / "index.md").read_text().split())
    for path in (ROOT / "docs").glob("*.md"):
        title = path.read_text().splitlines()[0].removeprefix("# ")
        assert (f"[{title}]({path.name})" in text) == (path.name != "index.md")


def test_the_menu_has_every_page_once_and_takes_new_kinds():
    pages = [
        "index.md",
        "cost.md",
        "new.md",
        "tutorial.md",
        "results.md",
        "attention/elu.md",
        "attention/yours.md",
        "reference/attention.md",
        "reference/index.md",
        "problems/b.md",
        "problems/index.md",
    ]
    assert menu(pages) == [
        {"Home": "index.md"},
        {"Tutorial": ["tutorial.md"]},
        {"How-to guides": ["new.md"]},
        {"Concepts": ["cost.md", {"Attention": ["attention/elu.md", "attention/yours.md"]}]},
        {"Reference": ["reference/index.md", "reference/attention.md"]},
        {"Worked problems": ["problems/index.md", "problems/b.md"]},
        {"Results": ["results.md"]},
    ]


def test_the_headline_table_is_that_of_the_result_files():
    """Each row of the only table of figures in the README, from its result file."""
    text = (ROOT / "README.md").read_text()
    cells = {line.split(" | ")[0].removeprefix("| "): line for line in text.splitlines() if line.startswith("| ")}
    cpu = next(line for line in table(json.loads(RESULTS.read_text())).splitlines() if line.startswith("| taylor |"))
    *_, forward, backward, _, _ = (cell.strip() for cell in cpu.strip("|").split("|"))
    gpu = json.loads((RESULTS.parent / "attention_gpu_h200.json").read_text())
    times = {row["name"]: row["forward"] for row in gpu["rows"] if row["shape"] == "Y"}
    peers = json.loads((RESULTS.parent / "pronounce_peers.json").read_text())["systems"]
    wrong = {name: f"{100 * row['wer']:.1f} %" for name, row in peers.items()}
    recall = {record["contestant"]: record for record in json.loads(RECALL.read_text())["records"]}
    taylor, softmax = recall["taylor:key_dim=16"], recall["softmax:key_dim=16"]
    ratio = json.loads((RESULTS.parent / "text_wikitext_gpu.json").read_text())["softmax_over_peer"]["transformers"]
    counts = json.loads((RESULTS.parent / "cost_peers.json").read_text())["rows"]
    counters = counts[0].keys() - {"case", "parameters", "multiplications"}
    exact = {name: sum(row[name]["verdict"] == "exact" for row in counts) for name in counters}
    second = max(count for name, count in exact.items() if name != "qkv")
    expected = {
        "Taylor attention, 32,768 tokens, 2 CPU cores": f"{forward} faster, {backward} with backward |",
        "Taylor attention, 131,072 tokens, H200": f"{times['qkv taylor, key_dim 16']:.2f} ms | "
        f"{times['SDPA cuDNN']:.2f} ms by SDPA with cuDNN, {times['fla fused_chunk_based']:.2f} ms by fla |",
        "words pronounced wrong, 11,996 unseen words": f"{wrong['qkv, bundled']} | {wrong['g2p_en 2.1.0']} by g2p_en, "
        f"{wrong['phonetisaurus 0.3.0']} by Phonetisaurus |",
        "recall of 96 pairs, Taylor with key_dim 16": f"{100 * taylor['figures']['accuracy']['mean']:.1f} % in "
        f"{taylor['state_bytes']:,} bytes | {100 * softmax['figures']['accuracy']['mean']:.1f} % in "
        f"{softmax['state_bytes']:,} bytes by softmax |",
        "WikiText-2, same GPT-2 and training": f"{ratio['word_perplexity']:.3f} times the perplexity, "
        f"{ratio['tokens_per_second']:.2f} times the tokens per second |",
        "multiplications of 31 modules, counted exactly": f"{exact['qkv']} | {second} by the next best counter |",
    }
    assert len(counts) == 31
    for name, figures in expected.items():
        assert figures in cells[name]


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 160


def test_the_citation_has_the_version_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {project['version']}\n" in citation
    assert f"\nlicense: {project['license']}\n" in citation


def commands(path):
    """Return the lines of plain code blocks that start with `qkv`."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", path.read_text(), re.S | re.M)
    lines = [line for language, block in fences if not language for line in block.splitlines()]
    return [line.split("  #")[0].strip() for line in lines if line.startswith("qkv ")]


PAGES = [path for path in DOCUMENTS if path.name != "CHANGELOG.md"]  # which has the old names


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_commands_in_documents_exist_with_their_options(path):
    text = path.read_text()
    inline = [span for span in re.findall(r"`(qkv [^`]+)`", text) if not span.startswith("qkv -")]
    for line in [*commands(path), *inline]:
        command, words = get_command(app), line.split()[1:]
        while hasattr(command, "commands") and words and not words[0].startswith("-"):
            assert words[0] in command.commands, line
            command = command.commands[words.pop(0)]
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        given = {found[0] for word in words if (found := re.match(r"--[a-z0-9-]+", word))}
        assert given - known - {"--help", "--version"} == set(), line


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_training_settings_in_documents_exist(path):
    renamed = {"every", "smoothing"}  # in a command that the card of the bundled model shows as it ran
    named = set(re.findall(r"(?<![\w.])train\.([a-z_]+)", text_without_code(path)))
    assert named - renamed <= {field.name for field in fields(Settings)} | {"py"}


def text_without_code(path):
    return re.sub(r"```python\n.*?```", "", path.read_text(), flags=re.S)


@pytest.mark.slow
def test_the_tutorial_runs(tmp_path, monkeypatch, capsys):
    """Every command and every block, in order, with fewer steps and without the server."""
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "tutorial.md"
    first, second = blocks(page)
    exec(first, {})
    lines = [line for line in commands(page) if "serve" not in line]
    assert len(lines) >= 10
    for line in lines:
        short = line.replace("--steps 600", "--steps 4").replace("train.steps=200", "train.steps=4")
        arguments = shlex.split(short)
        done = subprocess.run([sys.executable, "-m", *arguments], capture_output=True, text=True, check=False)
        assert (done.returncode, line) == (0, line), done.stderr
    exec(second + re.search(r"```py\n(.*?)```", page.read_text(), re.S)[1], {})
    assert "taylor" not in capsys.readouterr().out
    assert (tmp_path / "roman.html").stat().st_size > 10_000
