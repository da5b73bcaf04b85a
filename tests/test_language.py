"""Phrases that must not come back into docstrings, help texts, errors and pages."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FORBIDDEN = {
    "told": r"\b(is|are|was|were|be) told\b",
    "whoever": r"\bwhoever\b",
    "anybody's, somebody's": r"\b(anybody|somebody)'s\b",
    "a sentence that begins with 'Of'": r"(^|\. )Of (?!course)",
    "is none, are none": r"(?<![Tt]here )\b(is|are) none\b(?! of)",
    "lest": r"\blest\b",
    "for ever": r"\bfor ever\b",
    "without, for default": r" without\.$",
    "from ... on": r"\bfrom which on\b",
    "British spelling": r"\b\w*(tokenis|optimis|normalis|initialis(?!m)|colour|neighbour|behaviour)\w*\b",
    "the old command": r"\bqkv (decode|tokenise)\b",
    "the old contract": r"\bStringJob\b|\bClassJob\b|\bTextJob\b",
}
TEXTS = sorted((ROOT / "qkv").rglob("*.py"))
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"])
# the map of old names must name them; the changelog lists them
EXEMPT = {"format_1.py"}


def strings_of(path):
    """Yield (line, text) of every string constant, docstrings included, and of every comment."""
    source = path.read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
    for number, line in enumerate(source.splitlines(), 1):
        comment = re.search(r"#(.*)$", line)
        if comment and "noqa" not in comment[1]:
            yield number, comment[1].strip()


@pytest.mark.parametrize("phrase", FORBIDDEN)
def test_no_phrase_in_the_package(phrase):
    pattern = re.compile(FORBIDDEN[phrase], re.M)
    found = [
        f"{path.relative_to(ROOT)}:{line}: {match[0]}"
        for path in TEXTS
        if path.name not in EXEMPT
        for line, text in strings_of(path)
        if (match := pattern.search(text))
    ]
    assert found == []


@pytest.mark.parametrize("phrase", FORBIDDEN)
def test_no_phrase_in_the_pages(phrase):
    pattern = re.compile(FORBIDDEN[phrase], re.M)
    # a row name of a result file stays as it was measured
    texts = {path: path.read_text().replace("fla the same, normalised", "") for path in PAGES}
    found = [f"{path.name}: {match[0]}" for path, text in texts.items() for match in pattern.finditer(text)]
    assert found == []


def test_functions_begin_with_a_verb():
    """A docstring of a function does not begin with an article or a question word."""
    noun = re.compile(r"(The|A|An|What|Whether|How|Where|Which|Who|Of|It|This|That)\b")
    found = []
    for path in TEXTS:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef):
                continue
            decorators = {ast.unparse(decorator).split(".")[-1] for decorator in node.decorator_list}
            if decorators & {"property", "cached_property", "setter"} or "problems" in path.parts:
                continue  # properties are nouns; a problem's docstring is its question
            text = ast.get_docstring(node) or ""
            if noun.match(text):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {text.splitlines()[0]}")
    assert found == []
