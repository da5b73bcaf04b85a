import pytest

from qkv.inference.source_text import in_known_case, longest_source
from qkv.models import EncoderDecoder, EncoderDecoderConfig, Ensemble, Recurrent, RecurrentConfig


def test_a_token_that_is_known_in_the_other_case_only_is_taken_as_that():
    assert in_known_case("aBCdß", {"a", "A", "b", "C", "D"}) == ["a", "b", "C", "D", "ß"]
    assert in_known_case(["The", "CAT", "Sat"], {"the", "The", "cat"}) == ["The", "cat", "Sat"]


def test_what_a_recurrent_network_reads_has_no_limit():
    reads_any = Recurrent(RecurrentConfig(dim=4, max_length=3), 9, 9)
    bounded = EncoderDecoder(
        EncoderDecoderConfig(dim=4, heads=1, hidden_dim=4, encoder_layers=1, decoder_layers=1, max_length=7), 9, 9
    )
    assert longest_source(reads_any) is None
    assert longest_source(bounded) == longest_source(Ensemble([reads_any, bounded])) == 7
    assert longest_source(Ensemble([reads_any, reads_any])) is None


@pytest.mark.parametrize("word", ["", "xyz"])
def test_what_is_unknown_stays(word):
    assert in_known_case(word, set()) == list(word)
