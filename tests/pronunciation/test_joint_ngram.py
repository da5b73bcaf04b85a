import json
import math
import random
import zlib
from collections import Counter
from dataclasses import replace

import pytest
import torch

from qkv.data import Pair
from qkv.decode import Hypothesis
from qkv.errors import QkvError
from qkv.pronunciation import NeuralG2P, Pronunciation, joint_fit, rescore
from qkv.pronunciation import joint_ngram as joint_module
from qkv.pronunciation.alignment import align
from qkv.pronunciation.joint_fit import fit_joint_ngram
from qkv.pronunciation.joint_ngram import END, LOG_STEPS, START, JointNGram
from qkv.pronunciation.rescore import fit_joint_weights
from tests.pronunciation.test_alignment import PAIRS, cuts_of
from tests.pronunciation.tiny import made_up, spoken
from tests.runs.sealing import reseal


@pytest.fixture(scope="module")
def joint():
    return fit_joint_ngram(PAIRS * 2 + PAIRS[:3], order=3)


class Definition:
    """Interpolated modified Kneser-Ney by dictionaries, one n-gram at a time."""

    def __init__(self, rows, order, units):
        self.order, self.units = order, units
        grams = Counter(
            tuple(row[i - n + 1 : i + 1]) for row in rows for n in range(1, order + 1) for i in range(n - 1, len(row))
        )
        before = {n: Counter(gram[1:] for gram in grams if len(gram) == n + 1) for n in range(1, order)}
        self.count = {
            gram: many if len(gram) == order or gram[0] == START else before[len(gram)][gram]
            for gram, many in grams.items()
            if gram != (START,)
        }

    def discount(self, n, count):
        of = [max(sum(len(g) == n and c == k for g, c in self.count.items()), 1) for k in (1, 2, 3, 4)]
        y = of[0] / (of[0] + 2 * of[1])
        amounts = [min(max(k - (k + 1) * y * of[k] / of[k - 1], 0), k) for k in (1, 2, 3)]
        return amounts[min(count, 3) - 1] if count else 0

    def p(self, unit, context):
        if context is None:
            return 1 / (self.units - 1)
        n = len(context) + 1
        total = sum(c for g, c in self.count.items() if len(g) == n and g[:-1] == context)
        shorter = self.p(unit, context[1:] if context else None)
        if not total:
            return shorter
        kept = {g[-1]: c - self.discount(n, c) for g, c in self.count.items() if len(g) == n and g[:-1] == context}
        left = 1 - sum(kept.values()) / total
        return kept.get(unit, 0) / total + left * shorter


def test_probabilities_are_those_of_the_definition(joint):
    """Every unit after every context of up to two, seen or not; a logarithm is off by half a step, back-offs too."""
    cuts = [cut for cut in align(PAIRS * 2 + PAIRS[:3]) if cut is not None]
    rows = [[START, *(joint.units[unit] for unit in cut), END] for cut in cuts]
    law = Definition(rows, 3, len(joint.units) + 2)
    contexts = {(START,)} | {tuple(row[i : i + 2]) for row in rows for i in range(len(row) - 2)}
    for context in contexts:
        node = joint.context[1 + START] if context[0] == START else 0
        for unit in context[context[0] == START :]:
            node = joint.advance(node, unit)[1]
        for unit in range(1, len(joint.units) + 2):
            expected = math.log(law.p(unit, context))
            assert joint.advance(node, unit)[0] == pytest.approx(expected, abs=1.5 / LOG_STEPS)


def test_what_follows_a_context_has_probabilities_that_sum_to_one(joint):
    for node in set(joint.context):
        total = sum(math.exp(joint.advance(node, unit)[0]) for unit in range(1, len(joint.units) + 2))
        assert total == pytest.approx(1, abs=0.05)


def test_a_score_is_the_sum_over_all_cuts(monkeypatch):
    """Of a model that has learned to cut in all ways, so that each pair has several."""
    every = [cut for pair in PAIRS for cut in cuts_of(*pair)]
    monkeypatch.setattr(joint_fit, "align", lambda pairs: every)
    monkeypatch.setattr(joint_module, "BEAM_WIDTH", 1000)
    joint = fit_joint_ngram(PAIRS, order=3)
    for word, phones in [*PAIRS[1:], ("pat", ("P", "AE", "T")), ("sap", ("S", "AE", "P"))]:
        ways = []
        for cut in cuts_of(word, phones):
            if all(unit in joint.units for unit in cut):
                node, total = joint.context[1 + START], 0.0
                for unit in [*(joint.units[unit] for unit in cut), END]:
                    cost, node = joint.advance(node, unit)
                    total += cost
                ways.append(total)
        assert len(ways) > 1
        expected = torch.tensor(ways, dtype=torch.float64).logsumexp(0).item()
        assert joint.score(word, phones) == pytest.approx(expected)


def test_what_was_learned_is_likelier_and_the_strange_is_possible(joint):
    assert joint.score("tap", ("T", "AE", "P")) > joint.score("tap", ("T", "AE", "T"))
    strange = joint.score("zap", ("ZH", "AE", "P"))
    assert -math.inf < strange < joint.score("nap", ("N", "AE", "P")) - 10
    assert joint.score("a", ("T", "R", "IH")) == -math.inf
    assert joint.score("", ()) > -math.inf


def test_the_likeliest_ways_are_kept(monkeypatch):
    """With few of them the sum is smaller, but never much: those that are dropped are the least likely."""
    every = [cut for pair in PAIRS for cut in cuts_of(*pair)]
    monkeypatch.setattr(joint_fit, "align", lambda pairs: every)
    joint = fit_joint_ngram(PAIRS, order=3)
    whole, few = [], []
    for kept, scores in ((1000, whole), (2, few)):
        monkeypatch.setattr(joint_module, "BEAM_WIDTH", kept)
        scores += [joint.score(word, phones) for word, phones in PAIRS]
    assert all(one - 1 < other <= one for one, other in zip(whole, few, strict=True))
    assert few[0] < whole[0]


def test_a_file_holds_all_of_it(joint, tmp_path):
    kept = replace(joint, weight=0.7, sharpness=0.4)
    kept.write(tmp_path / "joint.bin")
    again = JointNGram.read(tmp_path / "joint.bin")
    assert again == kept


def test_damage_is_told_with_the_file(joint, tmp_path):
    path = tmp_path / "joint.bin"
    joint.write(path)
    whole = path.read_bytes()
    draw = random.Random(0)
    for _ in range(40):
        place, bit = draw.randrange(len(whole)), draw.randrange(8)
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
        with pytest.raises(QkvError, match=r"joint\.bin"):
            JointNGram.read(path)
    for length in (0, 1, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(QkvError, match=r"joint\.bin"):
            JointNGram.read(path)


@pytest.mark.parametrize(
    "changed",
    [
        {"format": 99},
        {"nodes": 3},
        {"weight": float("nan")},
        {"weight": -1.0},
        {"weight": "x"},
        {"sharpness": None},
        {"sharpness": 0.0},
        {"units": [["a", ["AE"]]]},
        {"units": [[1, 2]]},
    ],
    ids=str,
)
def test_a_whole_file_that_says_something_impossible_is_refused(joint, tmp_path, changed):
    path = tmp_path / "joint.bin"
    joint.write(path)
    head, _, body = zlib.decompress(path.read_bytes()).partition(b"\n")
    path.write_bytes(zlib.compress(json.dumps({**json.loads(head), **changed}).encode() + b"\n" + body))
    with pytest.raises(QkvError, match=r"joint\.bin"):
        JointNGram.read(path)


def test_children_that_there_are_no_nodes_for_are_refused(joint, tmp_path):
    path = tmp_path / "joint.bin"
    joint.write(path)
    whole = zlib.decompress(path.read_bytes())
    path.write_bytes(zlib.compress(whole[:-2] + b"\1\0"))
    with pytest.raises(QkvError, match=r"nodes have \d+ children"):
        JointNGram.read(path)


def test_pairs_that_cannot_be_cut_are_refused(monkeypatch):
    with pytest.raises(ValueError, match="none of the 1 pairs"):
        fit_joint_ngram([("a", ("T", "R", "IH"))])
    monkeypatch.setattr(joint_fit, "MAX_UNITS", 5)
    with pytest.raises(ValueError, match="13 different units of letters and phones; the limit is 3"):
        fit_joint_ngram(PAIRS)


def heard(log_probability, *tokens, finished=True):
    return Hypothesis(tokens, log_probability, log_probability, finished)


def test_a_new_order_keeps_the_mass_of_the_list(joint):
    found = [heard(math.log(0.5), 1), heard(math.log(0.3), 2), heard(math.log(0.1), 3)]
    phones = [("T", "AE", "T"), ("T", "AE", "P"), ("F", "AE", "P")]
    same = rescore.rescore(joint, "tap", found, phones)
    assert [one.tokens for one in same] == [(1,), (2,), (3,)]
    assert [one.log_probability for one in same] == pytest.approx([one.log_probability for one in found])
    new = rescore.rescore(replace(joint, weight=1.0), "tap", found, phones)
    assert [one.tokens for one in new] == [(2,), (1,), (3,)]
    assert sum(math.exp(one.log_probability) for one in new) == pytest.approx(0.9)
    ratio = joint.score("tap", phones[1]) - joint.score("tap", phones[0]) + math.log(0.3 / 0.5)
    assert new[0].log_probability - new[1].log_probability == pytest.approx(ratio)
    blunt = rescore.rescore(replace(joint, weight=1.0, sharpness=0.5), "tap", found, phones)
    assert blunt[0].log_probability - blunt[1].log_probability == pytest.approx(ratio / 2)
    assert sum(math.exp(one.log_probability) for one in blunt) == pytest.approx(0.9)
    assert rescore.rescore(joint, "tap", found[:1], phones[:1]) == found[:1]
    assert rescore.rescore(joint, "tap", [], []) == []


def test_where_the_joint_model_has_no_say(joint):
    """A list with an answer of more phones than its letters can make stays as it is, and so does one without mass."""
    found = [heard(math.log(0.5), 1), heard(math.log(0.3), 2)]
    sure = replace(joint, weight=100.0)
    assert rescore.rescore(sure, "t", found, [("T", "R", "IH"), ("T",)]) == found
    assert rescore.rescore(sure, "t", found, [("P",), ("T",)])[0].tokens == (2,)
    nothing = [heard(-math.inf, 1), heard(-math.inf, 2)]
    assert rescore.rescore(sure, "t", nothing, [("P",), ("T",)]) == nothing


def test_what_came_to_an_end_is_before_what_was_cut_off(joint):
    found = [heard(math.log(0.5), 1, finished=False), heard(math.log(0.3), 2)]
    assert [one.tokens for one in rescore.rescore(joint, "tap", found, [("T", "AE", "P")] * 2)] == [(2,), (1,)]


def test_weight_and_sharpness_are_the_likeliest():
    """Answers drawn from softmax(0.5 own + 0.3 other): a weight of 0.6, a sharpness of 0.5."""
    draw = torch.Generator().manual_seed(0)
    own, other = (3 * torch.randn(20000, 5, generator=draw, dtype=torch.float64) for _ in range(2))
    truth = torch.multinomial((0.5 * own + 0.3 * other).softmax(1), 1, generator=draw)
    right = torch.zeros(own.shape, dtype=torch.bool).scatter_(1, truth, torch.ones_like(truth, dtype=torch.bool))
    own[::7, 4] = -torch.inf  # lists are not all as long
    right[::7, 4] = False
    weight, sharpness = rescore._maximize_likelihood(own, other, right)
    assert weight == pytest.approx(0.6, abs=0.05)
    assert sharpness == pytest.approx(0.5, abs=0.05)
    assert rescore._maximize_likelihood(own, other, torch.zeros_like(right)) == (0.0, 1.0)
    assert rescore._maximize_likelihood(own[1::7], -other[1::7], right[1::7])[0] == 0.0
    assert rescore._maximize_likelihood(-own[1::7], other[1::7], right[1::7]) == (0.0, 1.0)


def test_a_network_asks_the_joint_model_of_its_folder(tiny, tmp_path):
    """One whose n-grams say that every k is a B: with all the weight, it has its way among the answers of a beam."""
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("config.json", "vocabulary.json", "model.safetensors"):
        (folder / name).write_bytes((tiny / name).read_bytes())
    reseal(folder)
    wrong = [(word, tuple("B" if phone == "K" else phone for phone in spoken(word))) for word in made_up(3)]
    replace(fit_joint_ngram(wrong, order=2), weight=100.0).write(folder / "joint.bin")
    plain, advised = NeuralG2P.open(folder, joint=False), NeuralG2P.open(folder)
    assert plain.joint is None
    assert advised.predict(["kod"])[0] == plain.predict(["kod"])[0]  # greedy: one answer cannot be put in order
    said = [way.phones for way in plain.predict(["kod"], best=40, beams=40)[0]]
    preferred = max(said, key=lambda phones: advised.joint.score("kod", phones))
    assert said[0] == spoken("kod") != preferred
    assert advised.predict(["kod"], best=1, beams=40)[0][0].phones == preferred
    assert NeuralG2P.open(tiny, joint=folder / "joint.bin").joint == advised.joint
    assert NeuralG2P.open(tiny, joint=str(folder / "joint.bin")).joint == advised.joint
    assert not NeuralG2P.open(folder, tiny).has_joint  # its weight is for the one alone
    assert len(advised.predict(["kod", "dab"], best=3, beams=5)[1]) == 3


class Parrot:
    """Says the second best of two answers first, in every other word."""

    def __init__(self, words):
        self.words = words

    def unsupported_reason(self, word):
        return None if len(word) < 4 else "it is long"

    def predict(self, words, best, beams):
        right = [Pronunciation(spoken(word), 0.6 if self.words.index(word) % 2 else 0.3) for word in words]
        wrong = [Pronunciation((*spoken(word)[:-1], "ZH"), 0.45) for word in words]
        return [tuple(sorted(both, key=lambda way: -way.probability)) for both in zip(right, wrong, strict=True)]


def test_a_weight_is_chosen_on_held_out_words():
    """Half of the words are wrong alone and none with n-grams that know better; each half is judged by the other."""
    words = [*made_up(3)[:80], "babo"]
    pairs = [Pair(tuple(word), (spoken(word),)) for word in words]
    joint = fit_joint_ngram([(word, spoken(word)) for word in made_up(2)], order=2)
    chosen = fit_joint_weights(Parrot(words), joint, pairs, beams=2)
    assert chosen.words == 81
    assert chosen.wrong_alone == pytest.approx(41 / 81)  # one of them was refused
    assert chosen.wrong_with == pytest.approx(1 / 81)
    assert chosen.weight > 0


def test_each_half_is_judged_by_the_weight_of_the_other(monkeypatch):
    """Where one half of the words needs the n-grams and the other must not hear them, crossing makes both wrong."""
    words = made_up(3)[:80]  # the right one is less likely alone in words 0, 2, ...: the first half
    pairs = [Pair(tuple(word), (spoken(word),)) for word in words]
    joint = fit_joint_ngram([(word, spoken(word)) for word in made_up(2)], order=2)

    def weigh(own_half, other, right):
        alone = own_half.argmax(1)
        return (0.0 if bool(right[torch.arange(len(right)), alone].all()) else 1.0), 1.0

    monkeypatch.setattr(rescore, "_maximize_likelihood", weigh)
    chosen = fit_joint_weights(Parrot(words), joint, pairs, beams=2)
    assert chosen.wrong_alone == 0.5
    assert chosen.wrong_with == 0.5  # the first half, by the weight 0 that suits the second; the second is right anyhow
