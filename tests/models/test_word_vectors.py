import math
import re

import pytest
import torch

from qkv.data import SkipGramBatch, SkipGramSampler, WordCounts
from qkv.models import WordVectors, WordVectorsConfig

WORDS, DIM = 23, 7


def model(objective="skip_gram", **sizes):
    made = WordVectors(WordVectorsConfig(dim=DIM, objective=objective, **sizes), WORDS).double()
    with torch.no_grad():
        made.center.normal_()
        made.context.normal_()
    return made


def windows(groups=5, together=3, around=11, shared=2):
    seen = torch.rand(groups, together, around) < 0.4
    seen[0, 1] = False  # a word without neighbors
    return SkipGramBatch(
        torch.randint(WORDS, (groups, together)),
        torch.randint(WORDS, (groups, around)),
        seen,
        torch.randint(WORDS, (groups, shared)),
    )


def softplus(x):
    return math.log1p(math.exp(x))


def dot(a, b):
    return sum(x * y for x, y in zip(a.detach().tolist(), b.detach().tolist(), strict=True))


def loss_by_loops(made, given):
    """From the formula, a number at a time."""
    lost, count = 0.0, 0
    for group in range(len(given.centers)):
        noise = [made.context[n] for n in given.negatives[group]]
        for place, word in enumerate(given.centers[group]):
            near = [
                c for c, is_near in zip(given.contexts[group], given.is_neighbor[group, place], strict=True) if is_near
            ]
            if not near:
                continue
            if made.config.objective == "cbow":
                mean = sum(made.center[c] for c in near) / len(near)
                scored = [(mean, made.context[word])]
            else:
                scored = [(made.center[word], made.context[c]) for c in near]
            for left, right in scored:
                wrong = sum(softplus(dot(left, n)) for n in noise) / len(noise)
                lost += softplus(-dot(left, right)) + made.config.negatives * wrong
                count += 1
    return lost, count


@pytest.mark.parametrize("objective", ["skip_gram", "cbow"])
def test_the_loss_is_the_formula(objective):
    made, given = model(objective, negatives=3), windows()
    lost, count = loss_by_loops(made, given)
    assert float(made.loss(given).detach()) == pytest.approx(lost, rel=1e-12)
    assert made.count(given) == count


def test_an_update_is_gradient_descent():
    """The hand-written update against autograd; float64."""
    made, given = model(negatives=4), windows()
    loss = made.loss(given)
    loss.backward()
    expected = [table.detach() - 0.003 * table.grad for table in (made.center, made.context)]
    assert made.update(given, rate=0.003) == pytest.approx(float(loss.detach()), rel=1e-12)
    for table, wanted in zip((made.center, made.context), expected, strict=True):
        torch.testing.assert_close(table.detach(), wanted, rtol=1e-12, atol=1e-12)


def test_an_update_of_cbow_gives_each_neighbor_the_whole_error():
    """As word2vec: in the gradient by autograd the mean is a sum, while its value stays that of the mean."""
    made, given = model("cbow"), windows()
    seen = given.is_neighbor.double()
    pairs = seen.sum(-1, keepdim=True)
    total = seen @ made.center[given.contexts]
    mean = total + (total / pairs.clamp(min=1) - total).detach()
    right = torch.nn.functional.softplus(-(mean * made.context[given.centers]).sum(-1))
    wrong = torch.nn.functional.softplus(mean @ made.context[given.negatives].transpose(1, 2)).mean(-1)
    loss = ((right + 5 * wrong) * (pairs[..., 0] > 0)).sum()
    loss.backward()
    expected = [table.detach() - 0.003 * table.grad for table in (made.center, made.context)]
    assert made.update(given, rate=0.003) == pytest.approx(float(loss.detach()), rel=1e-12)
    for table, wanted in zip((made.center, made.context), expected, strict=True):
        torch.testing.assert_close(table.detach(), wanted, rtol=1e-12, atol=1e-12)


def word2vec_step(center, context, word, near, noise, rate):
    """CBOW as word2vec does it: a number at a time, and the sum of all errors for each neighbor."""
    hidden = [sum(center[c][d] for c in near) / len(near) for d in range(DIM)]
    errors = [0.0] * DIM
    for target, label in ((word, 1), *((n, 0) for n in noise)):
        score = sum(x * y for x, y in zip(hidden, context[target], strict=True))
        pull = rate * (label - 1 / (1 + math.exp(-score)))
        errors = [e + pull * y for e, y in zip(errors, context[target], strict=True)]
        context[target] = [y + pull * x for x, y in zip(hidden, context[target], strict=True)]
    for c in near:
        center[c] = [x + e for x, e in zip(center[c], errors, strict=True)]


def test_cbow_by_hand_as_word2vec_does_it():
    """In turn, each word with five words of noise of its own: nothing is shared, so all is as in the original."""
    made = model("cbow")
    center, context = made.center.tolist(), made.context.tolist()
    for word, near, noise in (
        (3, [1, 2, 5, 7], [0, 4, 6, 8, 9]),
        (5, [2, 3, 2], [3, 10, 11, 12, 1]),
        (2, [3], [5, 22, 7, 0, 13]),
    ):
        word2vec_step(center, context, word, near, noise, 0.05)
        seen = torch.ones(1, 1, len(near), dtype=torch.bool)
        made.update(SkipGramBatch(torch.tensor([[word]]), torch.tensor([near]), seen, torch.tensor([noise])), 0.05)
    torch.testing.assert_close(made.center.detach(), torch.tensor(center, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(made.context.detach(), torch.tensor(context, dtype=torch.float64), rtol=0, atol=1e-12)


def test_first_vectors_are_short_and_even():
    """Between -1 / dim and 1 / dim: a variance of 1 / (3 dim^2)."""
    made = WordVectors(WordVectorsConfig(dim=50), 2000)
    assert float(made.center.detach().abs().max()) <= 1 / 50
    assert float(made.center.detach().var()) * 3 * 50**2 == pytest.approx(1, rel=0.02)
    assert not made.context.detach().any()


@pytest.mark.parametrize("objective", ["skip_gram", "cbow"])
def test_many_groups_are_updates_one_after_the_other(objective):
    made, other, given = model(objective), model(objective), windows(groups=67)
    other.load_state_dict(made.state_dict())
    lost = sum(other.update(SkipGramBatch(*(t[start : start + 32] for t in given)), 0.003) for start in (0, 32, 64))
    assert made.update(given, 0.003) == pytest.approx(lost, rel=1e-12)
    assert torch.equal(made.center, other.center)
    assert torch.equal(made.context, other.context)


def test_rows_that_would_overshoot_are_held_back():
    """All scores are of word 4: 2 / (rate * scores) of its change is made, that of the rest is none."""
    given = SkipGramBatch(
        torch.full((2, 3), 4), torch.full((2, 11), 4), torch.ones(2, 3, 11, dtype=torch.bool), torch.full((2, 2), 4)
    )
    made, free = model(), model()
    free.load_state_dict(made.state_dict())
    before = free.center.detach().clone()
    free.loss(given).backward()
    made.update(given, rate=0.5)
    scores = 2 * 3 * 11 * (1 + 5)
    expected = before - 2 / scores * free.center.grad
    torch.testing.assert_close(made.center.detach(), expected, rtol=1e-6, atol=1e-9)
    assert float((expected - before)[4].abs().max()) > 1e-3


@pytest.mark.parametrize("objective", ["skip_gram", "cbow"])
def test_a_text_of_one_word_does_not_diverge(objective):
    paragraphs = [["a"] * 1000]
    text = SkipGramSampler(paragraphs, WordCounts.build(paragraphs), window=5, threshold=0)
    made = WordVectors(WordVectorsConfig(dim=5, objective=objective), 1)
    for epoch in range(50):
        assert math.isfinite(made.update(text.draw([epoch], seed=0), 0.025))
    assert float(made.center.detach().abs().max()) < 10


def test_scores():
    source, target = torch.randint(WORDS, (2, 3)), torch.randint(WORDS, (2, 5))
    made, bag = model(), model("cbow")
    scores = made(source, target)
    assert scores.shape == (2, 3, 5)
    assert scores[1, 2, 4].item() == pytest.approx(dot(made.center[source[1, 2]], made.context[target[1, 4]]))
    mean = sum(bag.center[n] for n in source[1]) / 3
    assert bag(source, target).shape == (2, 1, 5)
    assert bag(source, target)[1, 0, 4].item() == pytest.approx(dot(mean, bag.context[target[1, 4]]))


def test_representations():
    made = model()
    assert torch.equal(made.vectors(), made.center)
    assert torch.equal(made.vectors("context"), made.context)
    assert torch.equal(made.vectors("mean")[5], (made.center[5] + made.context[5]) / 2)
    assert torch.equal(made.vectors("concatenation")[5], torch.cat((made.center[5], made.context[5])))
    with pytest.raises(ValueError, match="unknown representation 'centre'; did you mean 'center'"):
        made.vectors("centre")


@pytest.mark.parametrize("objective", ["skip_gram", "cbow"])
def test_words_with_the_same_neighbors_come_together(objective):
    """Each of two subjects has its own words around two names that may stand for each other."""
    draw = torch.Generator().manual_seed(1)
    subjects = [[f"{subject}{n}" for n in range(8)] for subject in "xy"]
    paragraphs = []
    for _ in range(600):
        subject = int(torch.randint(2, (), generator=draw))
        words = [subjects[subject][n] for n in torch.randint(8, (6,), generator=draw).tolist()]
        words[3] = ("king", "queen")[int(torch.randint(2, (), generator=draw))] if subject else words[3]
        paragraphs.append(words)
    counts = WordCounts.build(paragraphs)
    text = SkipGramSampler(paragraphs, counts, window=5, threshold=0)
    made = WordVectors(WordVectorsConfig(dim=8, objective=objective), len(counts))
    for epoch in range(30):
        made.update(text.draw(range(epoch * text.block_count, (epoch + 1) * text.block_count), seed=0), 0.05)
    table = torch.nn.functional.normalize(made.vectors(), dim=1)
    king, queen, other = (table[counts.encode([word])[0]] for word in ("king", "queen", "x3"))
    assert float(king @ queen) > float(king @ other) + 0.5


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dim": 0}, "dim must be at least 1, got 0"),
        ({"negatives": 0}, "negatives must be at least 1, got 0"),
        ({"objective": "skipgram"}, "unknown objective 'skipgram'; did you mean 'skip_gram'?"),
    ],
)
def test_bad_settings(values, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        WordVectorsConfig(**values)


def test_no_words():
    with pytest.raises(ValueError, match="words must be at least 1, got 0"):
        WordVectors(WordVectorsConfig(), 0)
