import random
from itertools import pairwise

import pytest
import torch

from qkv.decode import SearchLimits, argmax_token, greedy, stream
from qkv.inference import prefix_cache
from qkv.inference.prefix_cache import CachedModel, PrefixCache
from qkv.inference.speculative import PromptNgramDraft, speculative_stream
from tests.inference.speculative.decoders import KINDS, KINDS_AND_CONVOLUTIONS, VOCABULARY, decoder

BLOCK = 8
TREE = 10**7
"""Bytes that hold everything."""


def ids(count, seed):
    return [random.Random(seed * 1009 + place).randrange(VOCABULARY) for place in range(count)]


def prompts(count):
    """Prompts that share beginnings of one text, of every length modulo the block."""
    text, lengths = ids(90, 1), random.Random(2)
    return [text[: lengths.randrange(90)] + ids(lengths.randrange(30), seed + 5) for seed in range(count)]


def assert_same_bits(found, expected):
    found, expected = found.tensors(), expected.tensors()
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []


@pytest.mark.parametrize(("attention", "convolution"), KINDS_AND_CONVOLUTIONS)
def test_a_hit_gives_the_bits_of_a_miss(attention, convolution):
    model = decoder(attention, convolution=convolution, max_length=140).float()
    texts = prompts(12)
    texts += [texts[3], texts[3] + ids(20, 3)]
    expected = [PrefixCache(model, 0, BLOCK).start(text) for text in texts]
    for max_bytes in (9_000, TREE):
        cache = PrefixCache(model, max_bytes, BLOCK)
        for text, state in zip(texts, expected, strict=True):
            found = cache.start(text)
            assert found.length == len(text)
            assert_same_bits(found, state)
        assert cache.statistics().hits > 0


@pytest.mark.parametrize("attention", KINDS)
def test_the_state_is_that_of_the_model(attention):
    model = decoder(attention, max_length=130)
    cache, text = PrefixCache(model, TREE, BLOCK), ids(61, 1)
    cache.start(text[:50])
    state, own = cache.start(text), model.start(torch.tensor([text]), None)
    following = torch.tensor([[3, 1, 4, 1]])
    with torch.inference_mode():
        found, expected = (model.extend(following, x)[0] for x in (state, own))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_a_returned_state_can_be_continued_without_changing_the_cache():
    for attention in ("softmax", "taylor"):
        model = decoder(attention, max_length=130)
        cache, text = PrefixCache(model, TREE, BLOCK), ids(40, 1)
        expected = PrefixCache(model, 0, BLOCK).start(text)
        for _ in range(3):
            state = cache.start(text)
            assert_same_bits(state, expected)
            with torch.inference_mode():
                model.extend(torch.tensor([[3, 1, 4]]), state.rewind(2) if attention == "softmax" else state)


def test_what_is_reused_is_counted():
    model = decoder("softmax", max_length=130)
    cache, text = PrefixCache(model, TREE, BLOCK), ids(50, 1)
    cache.start(text)
    cache.start([*text[:30], *ids(9, 2)])  # 3 whole blocks are shared
    cache.start(text[:5])  # not one block
    found = cache.statistics()
    assert (found.hits, found.misses, found.tokens_reused, found.tokens_prefilled) == (1, 2, 24, 50 + 15 + 5)
    assert (found.prefixes, found.evictions) == (6 + 1, 0)
    # per block: 8 ids, 8 keys and values of 2 layers with 2 heads of 6, and the lengths of 2 layers
    assert found.bytes == 7 * (8 * 8 + 2 * 2 * 8 * 2 * 6 * 8 + 2 * 8)
    cache.clear()
    assert cache.statistics() == prefix_cache.PrefixStatistics(max_bytes=TREE)


def test_sums_are_kept_where_prompts_part_and_end():
    model = decoder("linear", max_length=130)
    cache, text = PrefixCache(model, TREE, BLOCK), ids(64, 1)
    reused = []
    for seed in range(4):
        cache.start([*text, *ids(12, seed + 3)])
        reused.append(cache.statistics().tokens_reused)
    # the first two prompts find nothing, but the second leaves the sums at the fork
    assert reused == [0, 0, 64, 128]
    sums = 2 * 2 * 6 * 6 * 8
    blocks = 8 + 4
    assert cache.statistics().bytes == blocks * (8 * 8 + 2 * 8) + 5 * sums


def test_a_conversation_that_grows_is_reused_to_its_end():
    model = decoder("delta", max_length=130)
    cache, text = PrefixCache(model, TREE, BLOCK), ids(120, 1)
    for end in (40, 80, 120):
        cache.start(text[:end])
    assert cache.statistics().tokens_reused == 40 + 80


@pytest.mark.parametrize("attention", ["softmax", "taylor", "2*linear,softmax", "softmax(window=3)"])
@pytest.mark.parametrize(("max_bytes", "evicts"), [(0, False), (79, False), (20_000, True)])
def test_the_bound_is_never_passed(attention, max_bytes, evicts, monkeypatch):
    model = decoder(attention, max_length=130)
    cache, stored = PrefixCache(model, max_bytes, BLOCK), []
    clone = prefix_cache._clone

    def watched(tensors):
        copies = clone(tensors)
        stored.append(held(cache) + sum(x.nbytes for x in copies.values()))
        return copies

    monkeypatch.setattr(prefix_cache, "_clone", watched)
    for text in prompts(25):
        cache.start(text)
        assert cache.statistics().bytes == held(cache) <= max_bytes
    assert max(stored, default=0) <= max_bytes
    assert (len(stored) > 0) is (cache.statistics().evictions > 0) is evicts


def held(cache):
    """Bytes of all that can be reached from the root."""
    total, nodes = 0, list(cache._root.children.values())
    while nodes:
        node = nodes.pop()
        nodes += node.children.values()
        total += len(node.key) + sum(x.nbytes for x in [*node.parts.values(), *(node.sums or {}).values()])
    return total


def test_the_least_recently_used_goes_first():
    model = decoder("softmax", max_length=130)
    block_bytes = 8 * 8 + 2 * 2 * 8 * 2 * 6 * 8 + 2 * 8
    cache = PrefixCache(model, 6 * block_bytes, BLOCK)
    first, second, third = (ids(24, seed) for seed in (1, 2, 3))
    cache.start(first)
    cache.start(second)
    cache.start(first)
    cache.start(third)  # the three blocks of the second go
    before = cache.statistics()
    assert (before.evictions, before.tokens_reused) == (3, 24)
    cache.start(first)
    assert cache.statistics().tokens_reused == 48
    cache.start(second)
    assert cache.statistics().tokens_reused == 48


def test_a_prompt_larger_than_the_bound_keeps_its_beginning():
    model = decoder("softmax", max_length=130)
    block_bytes = 8 * 8 + 2 * 2 * 8 * 2 * 6 * 8 + 2 * 8
    cache = PrefixCache(model, 4 * block_bytes + 7, BLOCK)
    for _ in range(2):
        cache.start(ids(100, 1))
    found = cache.statistics()
    assert (found.prefixes, found.tokens_reused, found.evictions) == (4, 32, 0)


def test_prompts_can_be_prefilled_in_turns():
    model = decoder("2*linear,softmax", max_length=130)
    cache = PrefixCache(model, 25_000, BLOCK)
    texts = prompts(10)
    for one, other in pairwise(texts):
        running = {0: cache.pieces(one), 1: cache.pieces(other)}
        last = {}
        while running:
            for number, pieces in list(running.items()):
                state = next(pieces, None)
                if state is None:
                    del running[number]
                else:
                    last[number] = state
        assert_same_bits(last[0], PrefixCache(model, 0, BLOCK).start(one))
        assert_same_bits(last[1], PrefixCache(model, 0, BLOCK).start(other))
        assert cache.statistics().bytes == held(cache) <= 25_000


def test_an_abandoned_prefill_leaves_a_cache_in_order():
    model = decoder("linear", max_length=130)
    cache = PrefixCache(model, 4_000, BLOCK)
    for text in prompts(25):
        for _ in zip(range(3), cache.pieces(text), strict=False):
            pass
        cache.start(text[::-1])
        assert cache.statistics().bytes == held(cache) <= 4_000


def test_searches_take_a_model_with_a_cache():
    model = decoder("elu", max_length=130)
    cached = CachedModel(PrefixCache(model, TREE, BLOCK))
    limits = SearchLimits(20, start=5, end=2)
    prompt = torch.tensor([ids(50, 1)])
    expected = [token for token, _ in stream(model, prompt, limits, argmax_token)]
    for _ in range(2):
        assert [token for token, _ in stream(cached, prompt, limits, argmax_token)] == expected
    found = speculative_stream(cached, prompt, limits, argmax_token, PromptNgramDraft())
    assert [token for token, _ in found] == expected
    assert cached.cache.statistics().tokens_reused == 2 * 48


def test_rows_of_a_batch_go_through_the_cache_one_by_one():
    model = decoder("softmax", max_length=130)
    cached = CachedModel(PrefixCache(model, TREE, BLOCK))
    rows, limits = [ids(9, 1), ids(30, 2)], SearchLimits(12, start=5, end=2)
    padded = torch.tensor([[0] * 21 + rows[0], rows[1]])
    mask = torch.arange(30) >= torch.tensor([[21], [0]])
    expected = [greedy(model, torch.tensor([row]), None, limits)[0].tokens for row in rows]
    assert [found.tokens for found in greedy(cached, padded, mask, limits)] == expected


def test_an_empty_prompt():
    model = decoder("softmax")
    assert PrefixCache(model, TREE).start([]).length == 0


def test_wrong_arguments():
    model = decoder("softmax", max_length=20)
    with pytest.raises(ValueError, match="max_bytes must be at least 0, got -1"):
        PrefixCache(model, -1)
    with pytest.raises(ValueError, match="block must be at least 1, got 0"):
        PrefixCache(model, 0, 0)
    with pytest.raises(ValueError, match="21"):
        PrefixCache(model, 0, BLOCK).start(ids(21, 1))
    with pytest.raises(ValueError, match="model must be in eval mode"):
        PrefixCache(decoder("softmax").train(), 0).start([3])
