"""Evaluate the formulas that the page prints, from their MathML."""

import math
import re
from xml.etree import ElementTree

NAMESPACE = "{http://www.w3.org/1998/Math/MathML}"
NAMES = {"exp": "exp", "tanh": "tanh", "\u2212": "-", "\u00b7": "*", "\u221e": "inf"}


def printed_lines(page):
    """Return each line of the formula as a list of sides; a side is a list of tokens of Python code."""
    source = page.eval_on_selector(".formula math", "e => new XMLSerializer().serializeToString(e)")
    rows = ElementTree.fromstring(source).iter(f"{NAMESPACE}mtd")
    return [_split(_tokens(row)) for row in rows]


def check_lines(lines, known, terms=()):
    """Evaluate all sides of all lines, and compare those of a line; return how many comparisons were made.

    `known` has the values of what the page prints as symbols, by its tokens, such as {("sum_d", "q_d", "k_jd"): 1.5};
    `terms` has for each n the values of the symbols under a sum over n. A line `symbol = ... = number` defines its
    symbol for the lines below it.
    """
    known = dict(known)
    compared = 0
    for sides in lines:
        values = [value for side in sides if (value := _evaluate(side, known, terms)) is not None]
        if len(sides[0]) == 1 and values:
            known.setdefault(tuple(sides[0]), values[-1])
        for value in values[:-1]:
            assert abs(value - values[-1]) <= 2e-4 * (1 + abs(value)), (sides, values)
            compared += 1
    return compared


def _split(tokens):
    sides = [[]]
    for token in tokens:
        if token == "=":
            sides.append([])
        else:
            sides[-1].append(token)
    return sides


def _evaluate(side, known, terms):
    """Return the value of a side; None if it has a symbol whose value nobody knows."""
    tokens = _with_sums(_with_values([token for token in side if not token.startswith("#")], known), known, terms)
    code, before = "", False
    for token in tokens:
        is_value = re.fullmatch(r"[\d.]+(e[+-]?\d+)?|@.*", token) is not None
        if not is_value and token not in ("exp", "tanh", "sqrt", "(", ")", "+", "-", "*", "/", "**"):
            return None
        if before and (is_value or token in ("(", "exp", "tanh", "sqrt")):
            code += "*"
        code += f"({token[1:]})" if token.startswith("@") else token
        before = is_value or token == ")"
    if not code:
        return None
    return eval(code, {"exp": math.exp, "tanh": math.tanh, "sqrt": math.sqrt})  # our own page wrote it


def _with_values(tokens, known):
    """Replace what is known, the longest phrases first."""
    for phrase in sorted(known, key=len, reverse=True):
        at = 0
        while at + len(phrase) <= len(tokens):
            if tuple(tokens[at : at + len(phrase)]) == phrase:
                tokens = [*tokens[:at], f"@{known[phrase]!r}", *tokens[at + len(phrase) :]]
            at += 1
    return tokens


def _with_sums(tokens, known, terms):
    """Replace a sum over n, which reaches to the end of its brackets, by its value."""
    if "sum_n" not in tokens or not terms:
        return tokens
    start = end = tokens.index("sum_n") + 1
    depth = 0
    while end < len(tokens) and (depth or tokens[end] != ")"):
        depth += {"(": 1, ")": -1}.get(tokens[end], 0)
        end += 1
    values = [_evaluate(tokens[start:end], {**known, **one}, ()) for one in terms]
    if None in values:
        return tokens
    return [*tokens[: start - 1], f"@{math.fsum(values)!r}", *tokens[end:]]


def _tokens(element):
    tag = element.tag.removeprefix(NAMESPACE)
    text = (element.text or "").strip()
    leaves = {"mtext": ["#" + text], "mi": [NAMES.get(text, text)], "mo": [NAMES.get(text, text)], "mn": _number(text)}
    return leaves[tag] if tag in leaves else _composed(tag, [_tokens(child) for child in element])


def _composed(tag, parts):
    """Return the tokens of an element that has others in it."""
    joined = [token for part in parts for token in part]
    first, *others = ["".join(part) for part in parts] if tag in ("msub", "munder") else parts
    return {
        "msub": lambda: [f"{first}_{others[0]}"],
        "munder": lambda: [f"sum_{others[0]}"],
        "msup": lambda: ["(", *first, ")", "**", "(", *others[0], ")"],
        "mfrac": lambda: ["(", "(", *first, ")", "/", "(", *others[0], ")", ")"],
        "msqrt": lambda: ["sqrt", "(", *joined, ")"],
        "mtd": lambda: joined,
        "mrow": lambda: joined,
        "mstyle": lambda: joined,
    }[tag]()


def _number(text):
    text = text.replace("\u2212", "-").replace("+", "")
    return ["(", "-", text[1:], ")"] if text.startswith("-") else [text]
