"""The comparison with other pronouncers counts right and runs their nets right."""

import numpy as np
import pytest
import torch

from benchmarks.pronounce_peers import G2pEn, score, table
from qkv.data import Pair


@pytest.fixture
def net():
    """The shape of g2p_en's net with weights of chance; the real ones are in a package that is not installed."""
    draw = np.random.default_rng(0)
    shapes = {
        **{f"{side}_{name}": shape for side in ("enc", "dec") for name, shape in SIDE.items()},
        "enc_emb": (29, 5),
        "dec_emb": (74, 5),
        "fc_w": (74, 7),
        "fc_b": (74,),
    }
    peer = G2pEn.__new__(G2pEn)
    peer.arrays = {name: draw.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    peer.letter_ids = {letter: place for place, letter in enumerate(G2pEn.letters)}
    peer.phones = peer._inventory()
    return peer


SIDE = {"w_ih": (21, 5), "w_hh": (21, 7), "b_ih": (21,), "b_hh": (21,)}


def test_its_step_is_that_of_torch(net):
    cell = torch.nn.GRUCell(5, 7)
    with torch.no_grad():
        for name, parameter in zip(("w_ih", "w_hh", "b_ih", "b_hh"), cell.parameters(), strict=True):
            parameter.copy_(torch.from_numpy(net.arrays[f"enc_{name}"]))
        x, state = torch.randn(1, 5), torch.randn(1, 7)
        expected = cell(x, state)[0].numpy()
    assert net._step("enc", x[0].numpy(), state[0].numpy()) == pytest.approx(expected, abs=1e-5)


def test_its_phones_are_as_many_as_it_has_outputs(net):
    assert len(net.phones) == len(set(net.phones)) == 74
    assert net.phones[4:8] == ["AA0", "AA1", "AA2", "AE0"]
    assert net.phones[-9:] == ["UW", "UW0", "UW1", "UW2", "V", "W", "Y", "Z", "ZH"]
    ((said,),) = net(["word"])
    assert len(said) <= 20


def test_scores_of_answers_that_are_known():
    answers = {"ab": [("AE1", "B")], "cd": [("K",), ("S", "IY1", "D")], "ef": []}
    pairs = [
        Pair(tuple("AB"), (("AE", "B"),)),
        Pair(tuple("cd"), (("S", "IY", "D"),)),
        Pair(tuple("ef"), (("EH", "F"),)),
    ]
    row = score(lambda words: [answers[word] for word in words], pairs, stress=False, best=2)
    assert (row["words"], row["wer"], row["missing_among_first_2"]) == (3, pytest.approx(2 / 3), pytest.approx(1 / 3))
    assert row["per"] == pytest.approx((3 + 2) / (2 + 3 + 2))
    assert "| ours | 66.7 % (20.8 to 93.9) | 71.4 % |" in table({"systems": {"ours": row, "other": {"skipped": "no"}}})
