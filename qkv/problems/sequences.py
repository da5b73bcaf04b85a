"""Group E: sequences, read and written."""

from qkv.problems.expectation import Answer, AtLeast, AtMost, Near
from qkv.problems.record import register_problem


@register_problem(
    "E1",
    hand_written="y = sigmoid(sum_i (x_2i - x_(2i-1)) + h_0), in one line of the derivation",
    slip="that line drops the 1000, which makes the answer a yes or no: do the even positions outweigh the odd ones?",
    expected={
        "apart from sigmoid(1000 (sum of even - sum of odd positions + h_0))": AtMost(1e-12),
        "even positions outweigh": Near(1.0, 1e-12),
        "odd positions outweigh": Near(0.0, 1e-12),
        "the two are equal": Near(0.5, 1e-12),
    },
)
def alternating_sum() -> Answer:
    """A recurrent cell h_t = x_t - h_(t-1) with y = sigmoid(1000 h_T), T even: what does it compute?"""
    import torch

    from qkv.layers import RecurrentCell

    cell = RecurrentCell(1, 1, "identity", bias=False).double()
    cell.input.weight.data.fill_(1.0)
    cell.state.weight.data.fill_(-1.0)

    def outcome(x: torch.Tensor, h: torch.Tensor | None = None) -> torch.Tensor:
        return (1000 * cell(x[..., None], h)[1][:, 0]).sigmoid()

    random = torch.Generator().manual_seed(0)
    x = 1e-3 * torch.randn(50, 12, generator=random, dtype=torch.float64)  # small, so that y is not just 0 or 1
    h = 1e-3 * torch.randn(50, 1, generator=random, dtype=torch.float64)
    formula = (1000 * (x[:, 1::2].sum(1) - x[:, ::2].sum(1) + h[:, 0])).sigmoid()
    rows = torch.tensor([[1.0, 2, 1, 2], [2, 1, 2, 1], [1, 2, 2, 1]], dtype=torch.float64)
    even, odd, equal = outcome(rows).tolist()
    return {
        "apart from sigmoid(1000 (sum of even - sum of odd positions + h_0))": (outcome(x, h) - formula)
        .abs()
        .max()
        .item(),
        "even positions outweigh": even,
        "odd positions outweigh": odd,
        "the two are equal": equal,
    }


@register_problem(
    "E2",
    hand_written="greedy ends with A END = 0.07, a beam of 2 finds B END = 0.27",
    expected={
        "greedy": ["A", "END"],
        "its probability": Near(0.07, 1e-12),
        "beam of 2": ["B", "END"],
        "probability of that": Near(0.27, 1e-12),
    },
)
def greedy_against_beam() -> Answer:
    """Greedy against beam. First token: A 0.7, B 0.3. After A: END 0.1 and ten others of 0.09.

    After B: END 0.9 and ten others of 0.01. What does each find in two tokens?
    """
    import math
    from dataclasses import dataclass

    import torch

    from qkv.decode import SearchLimits, beam_with_trees, greedy

    end, a, b = 2, 3, 4  # 0 is padding and 1 is START
    table = {
        None: {a: 0.7, b: 0.3},
        a: {end: 0.1, **dict.fromkeys(range(3, 13), 0.09)},
        b: {end: 0.9, **dict.fromkeys(range(3, 13), 0.01)},
    }

    @dataclass
    class State:
        started: torch.Tensor

        def select(self, rows: torch.Tensor) -> "State":
            return State(self.started[rows])

    class Model:
        def start(self, inputs: torch.Tensor, mask: torch.Tensor | None) -> State:
            return State(torch.zeros(len(inputs), dtype=torch.bool))

        def step(self, tokens: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
            logits = torch.full((len(tokens), 13), -math.inf, dtype=torch.float64)
            for row, token in enumerate(tokens.tolist()):
                for following, share in table[token if state.started[row] else None].items():
                    logits[row, following] = math.log(share)
            return logits, State(torch.ones_like(state.started))

    names = {end: "END", a: "A", b: "B"}
    nothing, limits = torch.zeros(1, 1, dtype=torch.int64), SearchLimits(max_length=2)
    (found,) = greedy(Model(), nothing, None, limits)
    ((best,),), (tree,) = beam_with_trees(Model(), nothing, None, limits, beams=2)
    return {
        "greedy": [names[token] for token in found.tokens] + ["END"] * found.finished,
        "its probability": math.exp(found.log_probability),
        "beam of 2": [names[token] for token in best.tokens] + ["END"] * best.finished,
        "probability of that": math.exp(best.log_probability),
        "expanded nodes": [
            {
                "parent": node.parent,
                "token": names.get(node.token, "START" if node.parent is None else f"other {node.token}"),
                "probability": math.exp(node.log_probability),
                "kept": node.kept,
            }
            for node in tree.nodes
        ],
    }


@register_problem(
    "E3",
    hand_written="Jaccard 0.504 -> 0.764, cosine 0.669 -> 0.865, Damerau-Levenshtein 0.274 -> 0.631 and "
    "loss 1.67 -> 1.16 by attention, on other data",
    expected={
        "the LSTM with attention is better in all three": True,
        "so is the Transformer": True,
        "and both have a lower loss": True,
    },
    slow=True,
)
def attention_helps_translation() -> Answer:
    """Words to phones by an LSTM without attention, an LSTM with it and a Transformer: is attention better?

    The same words of CMUdict and the same 200 updates for all; 400 unseen words.
    """
    from qkv.problems import fit
    from qkv.runs import build, configure
    from qkv.tasks import Preset, PronounceTask

    words = PronounceTask.load({})
    words.data.splits["valid"] = words.data.splits["valid"][:100]
    job = words.with_test_pairs(words.data.splits["test"][::15][:400])
    transformer = {"dim": 64, "heads": 4, "hidden_dim": 128, "encoder_layers": 2, "decoder_layers": 1}
    contestants = {
        "LSTM": ("recurrent", {"dim": 64, "attention": "none"}),
        "LSTM with attention": ("recurrent", {"dim": 64, "attention": "additive"}),
        "Transformer": ("encoder_decoder", {**transformer, "positions": "rope", "convolution": 5}),
    }
    training = {"steps": 200, "batch_size": 128, "learning_rate": 5e-3, "warmup": 50, "validate_every": 200}
    found = {}
    for name, (family, sizes) in contestants.items():
        config = configure("pronounce", Preset(family, {**sizes, "dropout": 0.0, "max_length": 64}, training), {})
        model = build(config, job)
        losses = fit(job.objective(model, config.train), config.train)
        scores = job.evaluate(model, "test")
        names = ("jaccard", "cosine", "damerau_levenshtein")
        found[name] = {**{score: scores[score] for score in names}, "loss": sum(losses[-20:]) / 20}
    first, *others = found.values()
    better = [all(other[score] > first[score] for score in names) for other in others]
    return {
        **found,
        "the LSTM with attention is better in all three": better[0],
        "so is the Transformer": better[1],
        "and both have a lower loss": all(other["loss"] < first["loss"] for other in others),
    }


@register_problem(
    "E4",
    hand_written="no big difference between the three similarities",
    slip="an anagram is equal to Jaccard and cosine, and only half right to Damerau-Levenshtein",
    expected={
        "kitten, sitting": Near([0.428571, 0.746203, 0.571429], 5e-7),
        "ab, ba": Near([1, 1, 0.5], 1e-12),
        "ab, aabb": Near([1, 1, 0.5], 1e-12),
        "two empty sequences": [1.0, 1.0, 1.0],
    },
)
def three_similarities() -> Answer:
    """Jaccard, cosine and Damerau-Levenshtein similarity of some pairs: do they agree?"""
    from qkv.metrics import cosine, damerau_levenshtein, jaccard

    scores = (jaccard, cosine, damerau_levenshtein)
    pairs = {"kitten, sitting": ("kitten", "sitting"), "ab, ba": ("ab", "ba"), "ab, aabb": ("ab", "aabb")}
    found = {name: [score(left, right) for score in scores] for name, (left, right) in pairs.items()}
    return {**found, "two empty sequences": [score("", "") for score in scores]}


@register_problem(
    "E5",
    hand_written="the mean, or the concatenation",
    slip="right for the mean; in the concatenation the context vectors, which agree less, are the longer half and rule",
    expected={
        "pairs judged": AtLeast(290),
        "mean": AtLeast(0.33),
        "center": AtLeast(0.33),
        "mean less context": AtLeast(0.05),
        "mean less concatenation": AtLeast(0.03),
        "context vectors are longer, times": AtLeast(1.1),
    },
    slow=True,
)
def four_representations_of_words() -> Answer:
    """word2vec gives each word a center and a context vector: which representation agrees best with people?

    Center, context, their mean or their concatenation, learned from WikiText-2 and judged on WS-353.
    """
    from qkv.data import ws353
    from qkv.inference import score_similarity
    from qkv.problems import fit
    from qkv.runs import build, configure, preset
    from qkv.tasks import WordsTask

    config = configure("words", preset("words", "wikitext"), {})
    job = WordsTask.load(config.data)
    model = build(config, job)
    losses = fit(job.objective(model, config.train), config.train)
    names = ("center", "context", "mean", "concatenation")
    found = {name: score_similarity(job.vectors(model, name), ws353()) for name in names}
    rho = {name: figures.spearman for name, figures in found.items()}
    lengths = {name: float(job.vectors(model, name).table.norm(dim=1).mean()) for name in ("center", "context")}
    return {
        **rho,
        "pairs judged": found["center"].pairs,
        "mean less context": rho["mean"] - rho["context"],
        "mean less concatenation": rho["mean"] - rho["concatenation"],
        "context vectors are longer, times": lengths["context"] / lengths["center"],
        "loss of every update": {"skip-gram": losses},
    }


@register_problem(
    "E6",
    hand_written="best learning rate 0.01, loss 0.55, accuracy 0.86, on other data; more parameters may overfit",
    expected={
        "best rate with pooling": 0.01,
        "best rate with stride": 0.01,
        "test accuracy at the best rate": AtLeast(0.86),
        "training less test accuracy": AtLeast(0.01),
    },
    slow=True,
)
def learning_rates_of_two_nets() -> Answer:
    """The nets of C6 on 1,000 digits with learning rates 0.1, 0.01 and 0.001: which is best, and do they overfit?

    The rate is chosen by 500 digits that are held out; the test digits judge only what was chosen.
    """
    from dataclasses import replace

    import torch

    from qkv.problems import fit
    from qkv.runs import build, configure
    from qkv.tasks import DigitsTask, Preset

    digits = DigitsTask.load({})
    few = digits.splits["train"].select(torch.arange(0, 4000, 4))
    job = replace(digits, splits={**digits.splits, "train": few})
    curves, held_out, best = {}, {}, {}
    trained: list[float] = []
    tested: list[float] = []
    for downsample in ("pool", "stride"):
        models = {}
        for rate in (0.1, 0.01, 0.001):
            training = {"steps": 150, "batch_size": 32, "learning_rate": rate, "warmup": 10, "validate_every": 150}
            config = configure("digits", Preset("convolutional", {"downsample": downsample}, training), {})
            models[rate], name = build(config, job), f"{downsample}, {rate:g}"
            curves[name] = fit(job.objective(models[rate], config.train), config.train)
            held_out[name] = job.evaluate(models[rate], "valid")["accuracy"]
        best[downsample] = max(models, key=lambda rate: held_out[f"{downsample}, {rate:g}"])
        for part, judged in (("train", trained), ("test", tested)):
            judged.append(job.evaluate(models[best[downsample]], part)["accuracy"])
    return {
        "best rate with pooling": best["pool"],
        "best rate with stride": best["stride"],
        "test accuracy at the best rate": tested,
        "training less test accuracy": [train - test for train, test in zip(trained, tested, strict=True)],
        "held-out accuracy": held_out,
        "loss of every update": curves,
    }
