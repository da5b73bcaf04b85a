import json
import math
from dataclasses import asdict

import pytest
import torch

from qkv.decode import Node, SearchLimits, beam, beam_with_trees
from tests.decode.models import END, Net, Table, random_table, words
from tests.decode.test_beam import TWO_TOKENS, A, B


def test_by_hand():
    """The tree of a beam of two: the first of A's ten equal continuations is considered, and not kept."""
    model = Table(lambda source, prefix: TWO_TOKENS[prefix], 16)
    ((found,),), (tree,) = beam_with_trees(model, torch.zeros(1, 1).long(), None, SearchLimits(2), beams=2)
    assert [(node.parent, node.token, node.step, node.kept, node.finished) for node in tree.nodes] == [
        (None, 1, 0, True, False),
        (0, A, 1, True, False),
        (0, B, 1, True, False),
        (2, END, 2, True, True),
        (1, END, 2, True, True),
        (1, 6, 2, False, False),
        (2, 6, 2, False, False),
    ]
    probabilities = [math.exp(node.log_probability) for node in tree.nodes]
    assert probabilities == pytest.approx([1, 0.7, 0.3, 0.27, 0.07, 0.063, 0.003], abs=1e-12)
    assert (tree.best, tree.path(3), found.tokens) == ((3,), [B, END], (B,))


@pytest.fixture(scope="module")
def searched():
    model = random_table(branches=5, seed=3)
    options = {"beams": 3, "n_best": 3, "length_penalty": 1.0}
    inputs = torch.arange(20)[:, None]
    hypotheses, trees = beam_with_trees(model, inputs, None, SearchLimits(5), **options)
    return model, hypotheses, trees, beam(model, inputs, None, SearchLimits(5), **options)


def test_recording_the_tree_does_not_change_the_result(searched):
    _, hypotheses, _, expected = searched
    assert hypotheses == expected


def test_each_node_adds_its_log_probability_to_its_parent(searched):
    model, _, trees, _ = searched
    for source, tree in enumerate(trees):
        for place, node in enumerate(tree.nodes[1:], 1):
            parent = tree.nodes[node.parent]
            own = model.probabilities(source, tuple(tree.path(node.parent)))[node.token]
            assert node.log_probability == pytest.approx(parent.log_probability + math.log(own), abs=1e-12)
            assert (node.step, node.parent < place) == (parent.step + 1, True)
            assert (parent.kept, parent.finished) == (True, False)


def test_each_step_keeps_the_best_considered(searched):
    for tree in searched[2]:
        for step in range(1, max(node.step for node in tree.nodes) + 1):
            nodes = [node for node in tree.nodes if node.step == step]
            kept = [node.log_probability for node in nodes if node.kept]
            dropped = [node.log_probability for node in nodes if not node.kept]
            assert len(kept) == 3
            assert min(kept) >= max(dropped, default=-math.inf)
            assert all(node.finished == (node.token == END) for node in nodes if node.kept)


def test_the_best_continuations_of_each_live_path_are_considered(searched):
    model, _, trees, _ = searched
    for source, tree in enumerate(trees):
        for place in {node.parent for node in tree.nodes[1:]}:
            own = model.probabilities(source, tuple(tree.path(place)))
            best = sorted(own, key=lambda token, own=own: -own[token])[:3]
            assert [node.token for node in tree.nodes if node.parent == place] == best


def test_the_best_nodes_are_the_hypotheses(searched):
    _, hypotheses, trees, _ = searched
    for tree, found in zip(trees, hypotheses, strict=True):
        assert len(tree.best) == 3
        for place, hypothesis in zip(tree.best, found, strict=True):
            assert tree.path(place) == [*hypothesis.tokens, END][: tree.nodes[place].step]
            assert tree.nodes[place].log_probability == hypothesis.log_probability
            assert tree.nodes[place].finished == hypothesis.finished


def test_it_is_plain_data():
    _, (tree,) = beam_with_trees(Net(), *words(1), SearchLimits(4), beams=3)
    text = json.dumps(asdict(tree), allow_nan=False)
    again = json.loads(text)
    assert tuple(Node(**node) for node in again["nodes"]) == tree.nodes
    assert tuple(again["best"]) == tree.best
