"""Names of letters."""

from qkv.pronunciation.arpabet import Phones, strip_stress

_NAMES = (
    "A EY1;B B IY1;C S IY1;D D IY1;E IY1;F EH1 F;G JH IY1;H EY1 CH;I AY1;"
    "J JH EY1;K K EY1;L EH1 L;M EH1 M;N EH1 N;O OW1;P P IY1;Q K Y UW1;R AA1 R;"
    "S EH1 S;T T IY1;U Y UW1;V V IY1;W D AH1 B AH0 L Y UW0;X EH1 K S;Y W AY1;Z Z IY1"
)
LETTERS: dict[str, Phones] = {name.split()[0]: tuple(name.split()[1:]) for name in _NAMES.split(";")}
"""Capital letter -> phones of its name."""


def is_spelled(word: str, phones: Phones) -> bool:
    """Return whether a pronunciation names the letters of the word one after the other, whatever the stress."""
    names = [LETTERS.get(letter.upper(), ("",)) for letter in word]
    return strip_stress(phones) == strip_stress(phone for name in names for phone in name if phone)
