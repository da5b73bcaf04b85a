"""The order of the rules: the first one that fits reads a token."""

from qkv.pronunciation.normalization import markup, symbols
from qkv.pronunciation.normalization.names import abbreviations, addresses, codes, initialisms, roman, web
from qkv.pronunciation.normalization.rule import TokenRule
from qkv.pronunciation.normalization.values import amounts, calendar, clock, quantities, ratios, science

_QUANTITIES = quantities.make_rules()
DIGITS: tuple[TokenRule, ...] = (
    web.MAIL,
    web.DOMAIN,
    web.FILE,
    calendar.ISO,
    calendar.SLASHES,
    calendar.DECADES,
    calendar.DAYS_MONTH,
    ratios.VERSE,
    *clock.RULES,
    codes.NATIONAL,
    codes.LOCAL,
    codes.INTERNATIONAL,
    codes.IP_ADDRESS,
    codes.VANITY,
    codes.EMERGENCY,
    codes.GROUPS,
    calendar.DECADE,
    calendar.OWNER,
    codes.PLURAL,
    *science.NUMBERS,
    addresses.ZIP,
    addresses.HOUSE,
    ratios.PART,
    *_QUANTITIES,
    *amounts.RULES,
    calendar.DAY_MONTH,
    calendar.ERA,
    calendar.YEARS,
    codes.PARTS,
    codes.IDENTIFIER,
    ratios.FRACTION,
    ratios.VULGAR,
    ratios.ORDINALS,
    ratios.ORDINAL,
    ratios.RANGE,
    ratios.RATIO,
    calendar.YEAR,
    codes.MIXED,
    *amounts.PLAIN,
)
"""Rules for texts that begin with a digit."""
SIGNS: tuple[TokenRule, ...] = (
    codes.NATIONAL,
    codes.INTERNATIONAL,
    codes.NUMBER_SIGN,
    *markup.RULES,
    calendar.DATE_DASH,
    amounts.BILLS,
    amounts.MONEY,
    *science.NUMBERS,
    _QUANTITIES[-1],
    amounts.PERCENT,
    amounts.MAGNITUDE,
    calendar.DECADE,
    calendar.SHORT_YEAR,
    ratios.PART,
    ratios.FRACTION,
    ratios.VULGAR,
    ratios.RANGE,
    *web.SIGNED,
    *amounts.PLAIN,
    *symbols.RULES,
)
"""Rules for texts that begin with a sign."""
LETTERS: tuple[TokenRule, ...] = (
    *web.RULES,
    web.FILE,
    *calendar.MONTH_RULES,
    *addresses.LETTERS,
    abbreviations.make_rule(),
    calendar.ERA_FIRST,
    initialisms.DOTTED,
    amounts.CODE_FIRST,
    amounts.MONEY,
    codes.VERSION,
    science.FORMULA,
    roman.ROMAN,
    roman.SMALL,
    initialisms.AMPERSAND,
    initialisms.INITIAL,
    initialisms.CAPITALS,
    codes.MIXED,
)
"""Rules for texts that begin with a letter."""
OTHERS: tuple[TokenRule, ...] = (symbols.GREEK,)
"""Rules for texts that begin with any other character."""
