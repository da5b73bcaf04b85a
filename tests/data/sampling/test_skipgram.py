import random

import pytest
import torch

from qkv.data import SkipGramSampler, WordCounts
from qkv.data.sampling.skipgram import BLOCK_SIZE, GROUP_SIZE, NEGATIVES_PER_GROUP


def text(paragraphs=150, words=31, seed=3):
    draw = random.Random(seed)
    return [
        [f"w{min(int(draw.expovariate(0.2)), 30)}" for _ in range(draw.randrange(words))] for _ in range(paragraphs)
    ]


@pytest.fixture(scope="module")
def plain():
    """A sampler without subsampling, so that neighbors can be read from the text itself."""
    paragraphs = text()
    counts = WordCounts.build(paragraphs, min_count=1)
    return paragraphs, counts, SkipGramSampler(paragraphs, counts, window=3, threshold=0)


def pairs_of(windows):
    """Yield (position of the word, distance, word, neighbor) for each neighbor."""
    found = []
    half = (windows.contexts.shape[1] - GROUP_SIZE) // 2
    for group, place, around in windows.is_neighbor.nonzero().tolist():
        word, neighbor = int(windows.centers[group, place]), int(windows.contexts[group, around])
        found.append((group * GROUP_SIZE + place, around - half - place, word, neighbor))
    return found


def test_neighbors_are_those_of_the_text(plain):
    """By plain loops over the paragraphs: a window of d holds all neighbors up to d, none of another paragraph."""
    paragraphs, counts, windows = plain
    words = [(number, word) for number, paragraph in enumerate(paragraphs) for word in counts.encode(paragraph)]
    blocks = windows.block_count
    assert blocks == -(-len(words) // BLOCK_SIZE) == 3
    drawn = windows.draw(range(blocks), seed=5)
    reach = {}
    for place, distance, word, neighbor in pairs_of(drawn):
        assert word == words[place][1]
        assert neighbor == words[place + distance][1]
        assert words[place][0] == words[place + distance][0]
        assert 1 <= abs(distance) <= 3
        reach[place] = max(reach.get(place, 0), abs(distance))
    for place, distance in reach.items():
        near = [p for p in range(place - distance, place + distance + 1) if 0 <= p < len(words) and p != place]
        inside = [p for p in near if words[p][0] == words[place][0] and p // BLOCK_SIZE == place // BLOCK_SIZE]
        assert len(inside) == int(drawn.is_neighbor[place // GROUP_SIZE, place % GROUP_SIZE].sum())


def test_window_sizes_are_uniform():
    paragraphs = [["a"] * 2000]
    windows = SkipGramSampler(paragraphs, WordCounts.build(paragraphs), window=4, threshold=0).draw([0, 1], seed=1)
    inner = windows.is_neighbor.sum(-1).flatten()[4 : BLOCK_SIZE - 4]
    shares = [float((inner == 2 * reach).double().mean()) for reach in range(1, 5)]
    assert shares == pytest.approx([0.25] * 4, abs=0.05)


def test_a_draw_is_a_pure_function_of_seed_epoch_and_block(plain):
    paragraphs, counts, _ = plain
    windows = SkipGramSampler(paragraphs, counts, window=5, threshold=1e-2)
    first, again, other_seed = (windows.draw([1], seed) for seed in (7, 7, 8))
    later = windows.draw([1 + windows.block_count], 7)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    for other in (other_seed, later):
        assert not torch.equal(first.negatives[0], other.negatives[0])
    both = windows.draw([0, 1], 7)
    alone = windows.draw([0], 7)
    whole = len(alone.centers) - 1  # the last group may be filled up
    assert torch.equal(both.centers[:whole], alone.centers[:whole])
    assert torch.equal(both.negatives[:whole], alone.negatives[:whole])


def test_frequent_words_are_subsampled_at_their_rate(plain):
    paragraphs, counts, _ = plain
    windows = SkipGramSampler(paragraphs, counts, window=5, threshold=1e-2)
    kept = torch.zeros(len(counts))
    epochs = 40
    for epoch in range(epochs):
        drawn = windows.draw(range(epoch * windows.block_count, (epoch + 1) * windows.block_count), 1)
        count = int((drawn.is_neighbor.any(-1)).sum())
        words = drawn.centers.flatten()[: drawn.centers.numel()]
        kept += words.bincount(minlength=len(counts))
        assert 0 < count <= drawn.centers.numel()
    share = kept / torch.tensor(counts.counts) / epochs
    common = slice(1, 6)  # of word 0 there are some more, which fill up the last group
    assert share[common].tolist() == pytest.approx(counts.keep_probabilities(1e-2)[common].tolist(), abs=0.03)


def test_negatives_are_drawn_by_their_probabilities(plain):
    _, counts, windows = plain
    noise = torch.cat([windows.draw(range(n, n + 50), 2).negatives.flatten() for n in range(0, 500, 50)])
    assert noise.numel() > 10_000
    found = noise.bincount(minlength=len(counts)).double() / noise.numel()
    assert found.tolist() == pytest.approx(counts.negative_probabilities(0.75).tolist(), abs=0.01)


def test_shapes_and_padding(plain):
    _, _, windows = plain
    drawn = windows.draw([2], seed=0)
    groups = -(-(len(windows.words) - 2 * BLOCK_SIZE) // GROUP_SIZE)
    assert drawn.centers.shape == (groups, GROUP_SIZE)
    assert drawn.contexts.shape == (groups, GROUP_SIZE + 6)
    assert drawn.is_neighbor.shape == (groups, GROUP_SIZE, GROUP_SIZE + 6)
    assert drawn.negatives.shape == (groups, NEGATIVES_PER_GROUP)
    filling = groups * GROUP_SIZE - (len(windows.words) - 2 * BLOCK_SIZE)
    assert filling > 0
    assert not drawn.is_neighbor[-1, -filling:].any()


def test_a_text_of_one_word_has_no_neighbors():
    paragraphs = [["a"] * 7]
    windows = SkipGramSampler(paragraphs, WordCounts.build(paragraphs), window=2, threshold=1e-12)
    assert not windows.draw([0], seed=0).is_neighbor.any()


@pytest.mark.parametrize(
    ("words", "window", "message"),
    [("a", 0, "window must be at least 1, got 0"), ("b", 2, "the text has no word that is in counts")],
)
def test_bad_input(words, window, message):
    with pytest.raises(ValueError, match=message):
        SkipGramSampler([[words]], WordCounts(("a",), (5,)), window=window, threshold=0)
