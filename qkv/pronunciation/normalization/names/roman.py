"""Roman numerals where a number is expected: World War II two, Chapter IV four, Henry VIII the eighth."""

import re

from qkv.pronunciation.normalization.rule import Neighbors, compile_rule, word_set
from qkv.pronunciation.normalization.values.numbers import Words, cardinal, ordinal

_VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}
_VALID = re.compile(r"M{0,3}(?:CM|CD|D?C{0,3})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})")
_RULERS = word_set(
    "henry elizabeth charles james george edward william louis richard mary john philip philipp frederick "
    "friedrich napoleon nicholas peter catherine alexander ivan pius benedict leo paul gregory clement innocent "
    "urban julius sixtus ferdinand francis francois leopold wilhelm christian gustav haakon olaf carl karl otto "
    "rudolf maximilian joseph alfonso felipe carlos juan victor emmanuel umberto ramesses ramses thutmose "
    "amenhotep ptolemy cleopatra darius xerxes artaxerxes cyrus mehmed selim murad suleiman mahmud justinian "
    "constantine theodosius boniface celestine adrian robert david anne margaret isabella harald sweyn canute "
    "knut kenneth donald duncan matthias sigismund ladislaus wladyslaw casimir stephen stefan rama baldwin "
    "amalric pedro afonso manuel hussein abdullah faisal vajiralongkorn mohammed hassan albert rainier honore "
    "franz josef menelik edmund aethelred athelstan"
)
_NUMBERED = word_set(
    "chapter part volume vol book act scene war section article title phase type class stage level grade appendix "
    "table figure fig unit lesson bowl apollo mark generation gen amendment olympiad canto episode tier group "
    "factor division schedule exhibit step ring rocky rambo saturn fantasy series pt page symphony sonata no "
    "number no. vatican"
)
_COUNTED = word_set(
    "century centuries olympiad olympic olympics congress corps army dynasty amendment arrondissement legion"
)
_NAMES = frozenset((word, "X") for word in ("generation", "gen", "mark", "class", "type", "factor"))
_TITLES = word_set(
    "world super the final type phase star toy ghost grand dark big street mortal resident jurassic back iron police"
)
_FAMILY = word_set("II III IV")
_LETTERS_TOO = word_set("IV VI XI XX XXX IX")
"""Numerals that may be letters or a name."""
_BETWEEN = frozenset((",", "and", "or", "&", "to", "–", "-", "/"))
_PAGES = word_set("page pages p pp verse line lines problem question item")
SMALL_NUMERALS = word_set("ii iii iv vi vii viii ix xi xii xiii xiv xv xvi xvii xviii xix xx xxi xxii xxiii xxiv xxv")

MAX_PLAIN = 60
"""Largest numeral that is read after any capitalized word."""


def value(text: str) -> int:
    """Return the value of a Roman numeral in capitals; 0 if the text is not one."""
    if not text or not _VALID.fullmatch(text):
        return 0
    numbers = [_VALUES[letter] for letter in text]
    following = [*numbers[1:], 0]
    return sum(-one if one < after else one for one, after in zip(numbers, following, strict=True))


def _read_roman(match: "re.Match[str]", near: Neighbors) -> Words | None:
    numeral = match["numeral"]
    if not value(numeral) or near.line_is_capitals or (len(numeral) == 1 and numeral not in "IVX"):
        return None
    number = str(value(numeral))
    kind = _kind(match, near) or _kind_alone(match, near)
    words = {"cardinal": cardinal(number), "ordinal": ordinal(number), "name": ("the", *ordinal(number))}.get(kind)
    return (*words[:-1], words[-1] + "'s") if words and match["owner"] else words


def _kind(match: "re.Match[str]", near: Neighbors) -> str:
    """Return how the words around ask for the numeral: cardinal, ordinal, name (of a ruler or a son), or empty."""
    numeral, before = match["numeral"], near.before()
    name, is_long = before.lower().rstrip("."), len(match["numeral"]) > 1
    if name == "the":
        return "ordinal" if is_long and near.after(match.end()).lower() in _COUNTED else ""
    if name in _NUMBERED and (name, numeral) not in _NAMES:
        return "cardinal"
    if not before[:1].isupper():
        return ""
    if name in _RULERS and (is_long or _ends_name(match, near)):
        return "name"
    if not is_long or value(numeral) > MAX_PLAIN or before.isupper():
        return ""
    is_name = numeral in _FAMILY and near.before(2)[:1].isupper() and near.before(3).rstrip(".") != "World"
    return "name" if is_name and _is_person(near) else "cardinal"


def _kind_alone(match: "re.Match[str]", near: Neighbors) -> str:
    """Return how a numeral is read in a list of numerals, or without any context."""
    numeral = match["numeral"]
    if numeral != "I" and _follows_numeral(near):
        return "cardinal"
    if len(numeral) < 2 or set(numeral) - set("IVX") or numeral in _LETTERS_TOO:
        return ""
    return "ordinal" if near.before().lower() == "the" else "cardinal"


def _follows_numeral(near: Neighbors) -> bool:
    """Return whether this is a list: before the numeral stands another one, then a comma, a dash, and, or, to."""
    place = 1
    while place < 4 and near.before(place) in _BETWEEN:
        place += 1
    before = near.token_before(place)
    return place > 1 and before is not None and before.kind == "roman"


def _read_small(match: "re.Match[str]", near: Neighbors) -> Words | None:
    """Read a numeral in small letters: page xii, scene ii, (iii)."""
    before = near.token_before()
    if not value(match["numeral"].upper()) or before is None:
        return None
    is_item = before.text == "(" and near.text[match.end() : match.end() + 1] == ")"
    asked = before.text.lower().rstrip(".") in _NUMBERED | _PAGES or before.kind == "roman"
    return cardinal(str(value(match["numeral"].upper()))) if is_item or asked else None


def _is_person(near: Neighbors) -> bool:
    """Return whether the two words before look like a name and a surname."""
    first = near.before(2).lower().rstrip(".")
    return near.known(first) and first not in _NUMBERED and first not in _TITLES


def _ends_name(match: "re.Match[str]", near: Neighbors) -> bool:
    """Return whether one letter is a numeral: Elizabeth I died, but Henry I know."""
    following = near.after(match.end()).lower()
    return match["numeral"] != "I" or following not in (
        "am",
        "was",
        "think",
        "know",
        "have",
        "had",
        "will",
        "would",
        "do",
        "did",
        "can",
    )


SMALL = compile_rule("roman", r"(?P<numeral>[ivx]{2,6})(?![\w'’-])", _read_small)
"""A numeral in small letters."""
ROMAN = compile_rule("roman", r"(?P<numeral>[IVXLCDM]{1,9})(?P<owner>['’]s)?(?![\w])", _read_roman)
"""A Roman numeral, judged by the word before it."""
