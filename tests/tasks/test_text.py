import math
from itertools import pairwise

import pytest
import torch

from qkv import runs, tasks
from qkv.data import Tokenizer
from qkv.errors import QkvError
from qkv.inference import PredictOptions
from qkv.inference.generate import Continuation, beam_continuations, encode_prompt, generate, token_chooser
from qkv.inference.sliding_window import IGNORE_INDEX, measure_perplexity, sliding_windows
from qkv.storage import write_json
from qkv.tasks.text import collate
from qkv.train import Loop, Settings, create_run
from tests.runs.sealing import reseal

SIZES = {"dim": 16, "heads": 2, "hidden_dim": 16, "layers": 1, "max_length": 64}
WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(40):
        text = " ".join(WORDS[(number * 3 + place * place) % 8] for place in range(number % 7 + 30))
        (texts / f"{number:02}.txt").write_text(text)
    return str(texts)


def load(folder, **options):
    return tasks.tasks["text"].load({"source": folder, "tokenizer": "characters", "size": 40, "length": 13, **options})


def make(job, **changes):
    config = runs.configure("text", runs.preset("text", None), {"model": SIZES, "data": job.options, **changes})
    return config, runs.build(config, job)


def test_rows_are_the_text_and_packing_is_where_documents_start(folder):
    job = load(folder)
    task = job.objective(make(job)[1], Settings(steps=1, batch_size=5))
    inputs, targets = task.collate(task.order(0))[:2]
    assert inputs.shape == targets.shape == (5, 13)
    shown = targets != IGNORE_INDEX
    assert torch.equal(inputs[:, 1:][shown[:, :-1]], targets[:, :-1][shown[:, :-1]])
    assert task.count((inputs, targets)) == int(shown.sum())
    assert (inputs[~shown] == job.tokenizer.end).all()


@pytest.mark.parametrize(("parts", "sizes"), [(2, [7, 6]), (4, [4, 4, 4, 1]), (6, [3, 3, 3, 3, 1, 0])])
def test_rows_are_split_over_processes(folder, parts, sizes):
    job = load(folder)
    task = job.objective(make(job)[1], Settings(steps=1, batch_size=5))
    tokens = torch.randint(3, len(job.tokenizer), (5, 14))
    tokens[:, 6], tokens[1, 3] = job.tokenizer.start, job.tokenizer.start
    whole = collate(tokens, job.tokenizer).tensors
    split = [task.split_sequence(whole, part, parts) for part in range(parts)]
    assert [x[0].shape[1] for x in split] == sizes
    for place in range(3):  # inputs, targets and positions in documents
        assert torch.equal(torch.cat([x[place] for x in split], 1), whole[place])
    assert [[piece.numel() for piece in x[3:]] for x in split] == [[0, 0]] * parts
    assert sum(map(task.count, split)) == task.count(whole)
    alone = task.split_sequence(whole[:2], 1, parts)  # each row is one document
    assert len(alone) == 2


def test_collate_by_hand():
    tokenizer = Tokenizer.train(["abcd"], "characters", 8)
    a, b, c, d = tokenizer.encode("abcd")
    inputs, targets, packing = collate(torch.tensor([[a, b, 2, 1, c, 2, 1], [1, a, b, c, d, a, b]]), tokenizer)
    assert inputs.tolist() == [[a, b, 2, 1, c, 2], [1, a, b, c, d, a]]
    assert targets.tolist() == [[b, 2, IGNORE_INDEX, c, 2, IGNORE_INDEX], [a, b, c, d, a, b]]
    assert packing.positions.tolist() == [[0, 1, 2, 0, 1, 2], [0, 1, 2, 3, 4, 5]]
    assert collate(torch.tensor([[1, a, b]]), tokenizer).packing is None


def test_windows_by_hand():
    """Nine targets, windows of 4 moved by 2: each target once, with at least two tokens before it from the third on."""
    x = IGNORE_INDEX
    assert list(sliding_windows(list(range(10)), 4, 2)) == [
        ([0, 1, 2, 3], [1, 2, 3, 4]),
        ([2, 3, 4, 5], [x, x, 5, 6]),
        ([4, 5, 6, 7], [x, x, 7, 8]),
        ([5, 6, 7, 8], [x, x, x, 9]),
    ]
    assert list(sliding_windows([7, 8], 4, 2)) == [([7], [8])]
    with pytest.raises(ValueError, match="stride must be 1 to length=4, got 5"):
        list(sliding_windows([1, 2], 4, 5))


class Uniform(torch.nn.Module):
    def __init__(self, tokens):
        super().__init__()
        self.nothing = torch.nn.Parameter(torch.zeros(tokens))

    def forward(self, tokens, at):
        return self.nothing.expand(int(at.sum()), -1)


@pytest.mark.parametrize("stride", [3, 13])
def test_perplexity_of_a_model_that_knows_nothing(folder, stride):
    job = load(folder)
    count = len(job.tokenizer)
    documents = list(job.splits["valid"])
    found = measure_perplexity(Uniform(count), job.tokenizer, documents, 13, stride)
    characters = sum(map(len, documents))
    assert found.tokens == characters + len(documents)
    assert found.words == sum(len(document.split()) for document in documents)
    assert found.bytes == characters
    assert found.per_token == pytest.approx(count, rel=1e-5)
    assert found.per_word == pytest.approx(count ** (found.tokens / found.words), rel=1e-4)
    figures = job.evaluate(Uniform(count), "valid")
    assert figures["perplexity"] == pytest.approx(count, rel=1e-5)
    assert figures["bits_per_byte"] == pytest.approx(found.tokens * math.log2(count) / characters, rel=1e-5)


def test_validation_reads_no_more_than_it_needs(folder):
    job = load(folder)
    documents = list(job.splits["train"])
    few = measure_perplexity(Uniform(len(job.tokenizer)), job.tokenizer, iter(documents), 13, 13, max_tokens=10)
    assert few.tokens == len(documents[0]) + 1


def test_the_loss_is_that_of_each_document_alone(folder):
    """A packed batch against the same documents run one by one, cut where the rows cut them."""
    job = load(folder)
    model = make(job)[1].double().eval()
    task = job.objective(model, Settings(steps=1, batch_size=60))
    tensors = task.collate(task.order(1))
    assert len(tensors) > 2
    expected = 0.0
    for inputs, targets in zip(*tensors[:2], strict=True):
        cuts = [0, *[place for place in range(1, 13) if inputs[place] == job.tokenizer.start], 13]
        for begin, end in pairwise(cuts):
            logits = model(inputs[None, begin:end])[0]
            expected += torch.nn.functional.cross_entropy(
                logits, targets[begin:end], ignore_index=IGNORE_INDEX, reduction="sum"
            )
    torch.testing.assert_close(task.loss(model, tensors), expected, rtol=1e-12, atol=0)


def test_training_learns_and_going_on_is_bit_identical(folder, tmp_path, monkeypatch):
    job = load(folder)
    changes = {"train": {"steps": 30, "batch_size": 8, "validate_every": 15, "warmup": 2, "learning_rate": 0.01}}
    config, _ = make(job, **changes)

    def loop(name, load_again=job):
        run = create_run(tmp_path / name) if not (tmp_path / name).exists() else runs.config.Run(tmp_path / name)
        return Loop(load_again.objective(make(job, **changes)[1], config.train), config.train, run)

    whole = loop("whole")
    whole.train()
    first = loop("parts")
    monkeypatch.setattr(first.interrupt, "raise_if_received", lambda: None)
    stop = first._train_step

    def stopped(update):
        if first.progress.step == 17:
            raise KeyboardInterrupt
        stop(update)

    monkeypatch.setattr(first, "_train_step", stopped)
    with pytest.raises(KeyboardInterrupt):
        first.train()
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "another"))  # the tokens are made anew, and are the same
    again = loop("parts", load(folder))
    again.resume()
    again.train()
    assert all(torch.equal(whole.best[name], again.best[name]) for name in whole.best)
    losses = [line["loss"] for line in whole.run.read_metrics() if "loss" in line]
    assert losses[-1] < 0.8 * losses[0]


def trained(job, tmp_path):
    config, model = make(job)
    run = create_run(tmp_path / "run")
    runs.save_config(run, config, job)
    run.save_weights(model.state_dict())
    return tmp_path / "run"


def test_a_run_is_restored_and_its_tokenizer_proven(folder, tmp_path):
    job = load(folder)
    path = trained(job, tmp_path)
    _, again, _ = runs.load(path)
    assert again.tokenizer == job.tokenizer
    assert again.with_data().evaluate(Uniform(len(job.tokenizer)), "test")["tokens"] > 0
    other = Tokenizer.train(["other text"], "characters", 40)
    write_json(path / "vocabulary.json", other.to_record())
    reseal(path)
    with pytest.raises(QkvError, match="the tokenizer in vocabulary.json is not the one that the model was trained"):
        runs.load(path)


@pytest.mark.parametrize(("search", "finished"), [("greedy", False), ("sample", True)])
def test_what_is_written_piece_by_piece_is_the_whole(folder, search, finished):
    """One that repeats a letter until it is cut, and one that comes to an end."""
    job = load(folder)
    model = make(job)[1].eval()
    prompt = encode_prompt(job.tokenizer, model, "alpha be", 20)
    *pieces, whole = generate(
        job.tokenizer,
        model,
        prompt,
        token_chooser(search, PredictOptions(seed=1, temperature=1.0, top_k=None, top_p=None)),
    )
    assert isinstance(whole, Continuation)
    assert "".join(pieces) == whole.text
    assert whole.tokens == len(job.tokenizer.encode(whole.text))
    assert (whole.finished, whole.tokens == 20) == (finished, not finished)
    ids = [*prompt.ids, *job.tokenizer.encode(whole.text), *([2] * whole.finished)]
    values = model(torch.tensor([ids[:-1]]))[0].index_fill(-1, torch.tensor(prompt.limits.forbidden), -torch.inf)
    own = values.log_softmax(-1).gather(-1, torch.tensor(ids[1:])[:, None])[len(prompt.ids) - 1 :]
    assert whole.log_probability == pytest.approx(own.sum().item(), rel=1e-4)


def test_a_beam_of_one_writes_what_greedy_writes(folder):
    job = load(folder)
    model = make(job)[1].eval()
    prompt = encode_prompt(job.tokenizer, model, "", 15)
    assert prompt.inputs.shape == (1, 0)
    *_, greedily = generate(job.tokenizer, model, prompt, token_chooser("greedy", PredictOptions()))
    (best,) = beam_continuations(job.tokenizer, model, prompt, beams=1, best=1)
    assert (best.text, best.finished) == (greedily.text, greedily.finished)
    assert len(beam_continuations(job.tokenizer, model, prompt, beams=3, best=3)) == 3


def test_bad_input(folder, tmp_path):
    job = load(folder)
    model = make(job)[1]
    with pytest.raises(
        ValueError, match=r"the prompt has 61 tokens with the start token, and 10 more exceed the model's max_length=64"
    ):
        encode_prompt(job.tokenizer, model, "a" * 60, 10)
    with pytest.raises(ValueError, match="tokens must be at least 1, got 0"):
        encode_prompt(job.tokenizer, model, "a", 0)
    with pytest.raises(ValueError, match="data.length=65 exceeds model.max_length=64: .*--set model.max_length=65"):
        load(folder, length=65).validate_model(model)
    with pytest.raises(ValueError, match="unknown tokenizer 'byte'; did you mean 'bytes'"):
        load(folder, tokenizer="byte")
    with pytest.raises(QkvError, match="there is no file none.json"):
        load(folder, tokenizer=str(tmp_path / "none.json"))
    with pytest.raises(ValueError, match="unknown data setting 'sise'; did you mean 'size'"):
        load(folder, sise=3)
    with pytest.raises(ValueError, match="length must be at least 1, got 0"):
        load(folder, length=0)
    with pytest.raises(ValueError, match="unknown split of the text 'tests'; did you mean 'test'"):
        job.evaluate(model, "tests")
    with pytest.raises(QkvError, match="the text or the tokenizer has changed since the run was started"):
        load(folder, digest="0")
    with pytest.raises(ValueError, match="unknown search 'beam'"):
        token_chooser("beam", PredictOptions())


def test_a_fresh_model_is_not_sure_that_each_token_follows_itself(folder):
    """With vectors of the decoder's own size it is: the loss is then nearly dim^0.5 = 16."""
    job = load(folder)
    sizes = {**SIZES, "dim": 256, "hidden_dim": 32}
    _, model = make(job, model=sizes)
    assert model.embed.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert job.evaluate(model, "valid")["loss"] < math.log(len(job.tokenizer)) + 2
    torch.nn.init.normal_(model.embed.weight, std=256**-0.5)
    assert job.evaluate(model, "valid")["loss"] > 11
    _, untied = make(job, model={**sizes, "tied": False})
    assert untied.embed.weight.std().item() == pytest.approx(256**-0.5, rel=0.1)


def test_presets_have_the_sizes_they_promise():
    sizes = {}
    for name, vocabulary in (("small", 2000), ("wikitext", 16000)):
        config = runs.configure("text", runs.preset("text", name), {})
        model = runs.config.family(config.family).build(
            runs.config.family(config.family).configure(config.model), vocabulary
        )
        sizes[name] = sum(p.numel() for p in model.parameters())
    assert 0.6e6 < sizes["small"] < 0.8e6
    assert 16e6 < sizes["wikitext"] < 18e6


def test_characters_split_over_tokens_come_when_they_are_whole():
    tokenizer = Tokenizer.train(["plain text only"], "bytes", 260)
    reader = tokenizer.stream_decoder(tokenizer.encode("caf"))
    ids = tokenizer.encode("é \U0001f40d!")
    pieces = [reader.push(number) for number in ids]
    assert pieces == ["", "é", " ", "", "", "", "\U0001f40d", "!"]
    assert reader.flush() == ""
    assert reader.push(ids[0]) == ""
    assert reader.flush() == "\ufffd"
    assert reader.push(tokenizer.end) == ""


def test_words_cut_into_pieces_are_joined_to_what_was_before():
    tokenizer = Tokenizer.train(["low lower lowest"] * 3, "wordpiece", 40)
    text = "low lowest lower"
    ids = tokenizer.encode(text)
    reader = tokenizer.stream_decoder(ids[:1])
    assert "".join(reader.push(number) for number in ids[1:]) + reader.flush() == text[3:]
