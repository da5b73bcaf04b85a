"""The code on the page about serving runs as it is printed."""

import re
from pathlib import Path

from qkv.web.rest.completion.request import KNOWN, NEUTRAL
from tests.web.rest.runs import serving_api

PAGE = (Path(__file__).parents[3] / "docs" / "serving.md").read_text()
COMPLETE, EMBED = re.findall(r"```py\n(.*?)```", PAGE, re.S)


def adapted(code, server):
    """The code with the address and the run of a test."""
    return code.replace("http://127.0.0.1:8000", server.address).replace('"gpt"', f'"{server.api.served.name}"')


def test_the_examples_run(text_run, masked_run, capsys):
    found = {}
    with serving_api(text_run) as server:
        exec(adapted(COMPLETE, server), found)
        found["client"].close()
    lines, streamed = capsys.readouterr().out, found["answer"].choices[0].text
    assert lines == f"{streamed} {found['answer'].usage.total_tokens}\n{streamed}"
    with serving_api(masked_run) as server:
        code = COMPLETE.split("\n\n")[1].split("\n")[0]
        exec(adapted(f"import openai\n{code}\n{EMBED.replace('bert', 'masked')}", server), found)
        found["client"].close()
    assert [len(one.embedding) for one in found["vectors"].data] == [24, 24]


def test_every_field_of_completions_is_on_the_page():
    table = PAGE.split("## What is exact")[0]
    assert [name for name in KNOWN if name != "model" and f"`{name}`" not in table] == []
    assert set(NEUTRAL) < set(KNOWN)
