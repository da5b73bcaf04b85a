"""Pages that are written from result files, and the speed benchmark behind one of them."""

import json

import pytest

from benchmarks import pronounce_page, pronounce_speed
from qkv.models import EncoderDecoder, EncoderDecoderConfig
from qkv.pronunciation.bundled import FOLDER

FIGURES = {"wer": 0.2149, "per": 0.0512, "words": 11_996, "wer_low": 0.2077, "wer_high": 0.2224, "missing": 0.0587}
MACHINE = {
    "date": "2026-01-02",
    "machine": {"cpu": "a processor", "threads": 2, "gpu": "a GPU"},
    "versions": {"torch": "2.13.0"},
    "command": "python -m benchmarks.pronounce_recipe bundled --teachers 4",
}


def row(members, *, stress, best=1, **changes):
    how = {"stress": stress, "best": best, "beams": best, "seed": 3, "split": "words.tsv"}
    return {"members": members, **FIGURES, **how, **changes}


def bundled():
    teachers = [f"teacher-{seed}" for seed in range(4)]
    rows = [row(["pupil"], stress=stress, best=best) for stress in (False, True) for best in (1, 5)]
    rows += [row(["pupil"], stress=stress, best=5, beams=10, joint=0.8) for stress in (False, True)]
    rows[0] |= {"wer": 0.2352}
    rows[5] |= {"wer": 0.2533, "per": 0.0651}
    return {**MACHINE, "figures": [*rows, row(teachers, stress=False, wer=0.1999)]}


def speed():
    rate = {"words_per_second": 4321.4}
    both = {"qkv": rate, "transformers": {"words_per_second": 1000.6, "ours_by_theirs_second": 4.318}}
    sizes = {"parameters": 2_262_985, "parameters_of_the_peer": 2_291_328}
    names = ("sorted batches of 64", "one at a time")
    return {**MACHINE, "model": sizes, "sorted, as the pronouncer batches": {"qkv": rate}, **dict.fromkeys(names, both)}


def test_the_page_equals_the_result_files():
    page = pronounce_page.PAGE.read_text()
    assert pronounce_page.filled(page) == page
    assert "| phonetisaurus 0.3.0 | " in page
    assert "(pronounce_model.md#speed)" in page
    assert "\n## Speed\n" in pronounce_page.CARD.read_text()
    written = page.split("<!-- peers -->")[1].rsplit("<!-- end -->")[0].splitlines()
    assert max(len(line) for line in written if not line.startswith("|")) <= pronounce_page.WIDTH


def test_the_card_is_that_of_the_result_files():
    peers, speed, _, bundled = (json.loads(path.read_text()) for path in pronounce_page._files())
    assert pronounce_page.CARD.read_text() == pronounce_page.card(bundled, peers, speed)
    assert (FOLDER / "README.md").read_text() == pronounce_page.CARD.read_text()


def test_the_card_has_data_split_figures_and_license():
    card = pronounce_page.card(bundled(), None, None)
    assert "On 11,996 held-out words, without a dictionary and with a beam of 10, " in card
    assert (
        "**21.5 %** of words are wrong without stress (20.8 to 22.2, the 95 % interval) and 25.3 % with stress." in card
    )
    assert "The phone error rates are 5.1 % and 6.5 %." in card
    assert "uses the Transformer alone, has 23.5 % of words wrong without stress." in card
    assert "| pupil (seed 3) | without | greedy | 23.5 % (20.8 to 22.2) | 5.1 % |  |" in card
    assert "| pupil (seed 3) | without | beam 10 and joint model | 21.5 % (20.8 to 22.2) | 5.1 % | 5.9 % |" in card
    assert "| pupil (seed 3) | without | beam 5 | 21.5 % (20.8 to 22.2) | 5.1 % | 5.9 % |" in card
    assert "| ensemble of 4 teachers | without | greedy | 20.0 % (20.8 to 22.2) | 5.1 % |  |" in card
    assert "pronounce_recipe bundled --teachers 4" in card
    assert "(2026-01-02, a GPU, torch 2.13.0)" in card
    assert [line for line in card.splitlines() if line.startswith("## ")] == [
        "## Data and split",
        "## How it was made",
        "## Limitations",
        "## License",
    ]


def test_speed_is_on_the_card_where_it_was_measured():
    card = pronounce_page.card(bundled(), None, speed())
    assert "on a CPU with 2,262,985 parameters, compared with a Marian model of 2,291,328" in card
    assert "| sorted, as the pronouncer batches | 4,321 words/s |  |  |  |" in card
    assert "| one at a time | 4,321 words/s | 1,001 words/s |  | 4.3x |" in card


def test_a_page_without_its_sections_is_an_error():
    with pytest.raises(ValueError, match="must have a section <!-- peers -->"):
        pronounce_page.filled("nothing")


@pytest.fixture(scope="module")
def model():
    sizes = {"dim": 24, "heads": 3, "hidden_dim": 48, "encoder_layers": 2, "decoder_layers": 1, "max_length": 17}
    return EncoderDecoder(EncoderDecoderConfig(**sizes, positions="rope"), 31, 73)


def test_the_peer_is_of_our_size(model):
    """Compare block by block; embeddings and final norms differ a little."""
    peer = pronounce_speed.marian(model)
    blocks = sum(p.numel() for side in (model.encoder, model.decoder) for p in side.parameters())
    theirs = sum(p.numel() for side in (peer.model.encoder, peer.model.decoder) for p in side.layers.parameters())
    assert theirs == blocks


def test_the_peer_generates_the_given_number_of_tokens(model):
    """One word alone takes its own number of steps, a batch that of its longest word."""
    peer = pronounce_speed.marian(model)
    written = []
    peer.register_forward_hook(lambda *_: written.append(1))
    words = pronounce_speed.Words(["ab", "abc"], [[5, 6, 0], [5, 6, 7, 0]], [3, 7])
    say = pronounce_speed.their_generate(peer, words)
    for numbers, steps in (([0], 3), ([1], 7), ([0, 1], 7)):
        written.clear()
        say(numbers)
        assert len(written) == steps


def test_systems_take_turns_on_the_same_batches():
    said = []
    systems = {"qkv": lambda batch: said.append(("qkv", batch)), "peer": lambda batch: said.append(("peer", batch))}
    found = pronounce_speed.measure(systems, [[0, 1], [2]], rounds=2)
    turn = [("qkv", [0, 1]), ("qkv", [2]), ("peer", [0, 1]), ("peer", [2])]
    assert said == [("qkv", [2]), ("peer", [2]), *turn, *turn]
    assert (found["words"], found["batch_size"], found["rounds"]) == (3, 2, 2)
    assert set(found["peer"]) == {f"{of}_{clock}" for of in ("words_per", "ours_by_theirs") for clock in CLOCKS}


CLOCKS = ("second", "processor_second")


def test_batches_are_sorted_by_letters():
    words = pronounce_speed.Words(["abc", "a", "ab", "b", "abcd"], [], [])
    assert words.batches(2) == [[1, 3], [2, 0], [4]]
