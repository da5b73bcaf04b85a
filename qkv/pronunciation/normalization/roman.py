"""Roman numerals where a number is expected: World War II two, Chapter IV four, Henry VIII the eighth."""

import re

from qkv.pronunciation.normalization.numbers import Words, cardinal, ordinal
from qkv.pronunciation.normalization.rule import Neighbors, compile_rule

_VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}
_VALID = re.compile(r"M{0,3}(?:CM|CD|D?C{0,3})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})")
_RULERS = frozenset(
    "henry elizabeth charles james george edward william louis richard mary john philip philipp frederick friedrich "
    "napoleon nicholas peter catherine alexander ivan pius benedict leo paul gregory clement innocent urban julius sixtus "
    "ferdinand francis francois leopold wilhelm christian gustav haakon olaf carl karl otto rudolf maximilian joseph "
    "alfonso felipe carlos juan victor emmanuel umberto ramesses ramses thutmose amenhotep ptolemy cleopatra darius xerxes "
    "artaxerxes cyrus mehmed selim murad suleiman mahmud justinian constantine theodosius boniface celestine adrian "
    "robert david anne margaret isabella harald sweyn canute knut kenneth donald duncan matthias sigismund "
    "ladislaus wladyslaw casimir stephen stefan rama baldwin amalric pedro afonso manuel hussein abdullah faisal "
    "vajiralongkorn mohammed hassan albert rainier honore franz josef menelik edmund aethelred athelstan".split()
)
_NUMBERED = frozenset(
    "chapter part volume vol book act scene war section article title phase type class stage level grade appendix table "
    "figure fig unit lesson bowl apollo mark generation gen amendment olympiad canto episode tier group factor division "
    "schedule exhibit step ring rocky rambo saturn fantasy series pt page symphony sonata no number no. vatican".split()
)
_COUNTED = frozenset("century centuries olympiad olympic olympics congress corps army dynasty amendment arrondissement legion".split())
_NAMES = frozenset((word, "X") for word in ("generation", "gen", "mark", "class", "type", "factor"))
_TITLES = frozenset("world super the final type phase star toy ghost grand dark big street mortal resident jurassic back iron police".split())
_FAMILY = frozenset("II III IV".split())


def value(text: str) -> int:
    """Return the value of a Roman numeral in capitals; 0 if it is none."""
    if not text or not _VALID.fullmatch(text):
        return 0
    numbers = [_VALUES[letter] for letter in text]
    following = [*numbers[1:], 0]
    return sum(-one if one < after else one for one, after in zip(numbers, following, strict=True))


def _read_roman(match: "re.Match[str]", near: Neighbors) -> Words | None:
    number, before = value(match["numeral"]), near.before()
    name = before.lower().rstrip(".")
    if not number or near.line_is_capitals:
        return None
    ending = ("'s",) if match["owner"] else ()
    if len(match["numeral"]) == 1 and match["numeral"] not in "IVX":
        return None
    if before.lower() == "the" and near.after(match.end()).lower() in _COUNTED and len(match["numeral"]) > 1:
        return ordinal(str(number))
    if name in _NUMBERED and (name, match["numeral"]) not in _NAMES:
        return _owned(cardinal(str(number)), bool(ending))
    if name in _RULERS and before[:1].isupper() and (len(match["numeral"]) > 1 or _ends_name(match, near)):
        return _owned(("the", *ordinal(str(number))), bool(ending))
    if len(match["numeral"]) < 2 or number > 60 or not before[:1].isupper() or before.isupper():
        return None
    is_name = match["numeral"] in _FAMILY and near.before(2)[:1].isupper() and near.before(3).rstrip(".") != "World"
    return _owned(("the", *ordinal(str(number))) if is_name and _is_person(near) else cardinal(str(number)), bool(ending))


def _owned(words: Words, is_owner: bool) -> Words:
    return (*words[:-1], words[-1] + "'s") if is_owner else words


def _is_person(near: Neighbors) -> bool:
    """Return whether the two words before look like a name and a surname."""
    first = near.before(2).lower().rstrip(".")
    return near.known(first) and first not in _NUMBERED and first not in _TITLES


def _ends_name(match: "re.Match[str]", near: Neighbors) -> bool:
    """Return whether one letter is a numeral: Elizabeth I died, but Henry I know."""
    following = near.after(match.end()).lower()
    return match["numeral"] != "I" or following not in ("am", "was", "think", "know", "have", "had", "will", "would", "do", "did", "can")


ROMAN = compile_rule("roman", r"(?P<numeral>[IVXLCDM]{1,9})(?P<owner>['’]s)?(?![\w])", _read_roman)
"""A Roman numeral, judged by the word before it."""
