"""Speed of the page in a real browser: `python -m benchmarks.workbench`.

Softmax of random scores, with the requested layers and heads, served and drawn. Writes
benchmarks/results/workbench_cpu.json. A map counts as drawn when its cell can be read; a hover is measured
from the event to the second frame after it.
"""

import json
import shutil
import sys
import threading
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from playwright.sync_api import Browser, Page, sync_playwright

import qkv
from benchmarks.machine import about

RESULTS = Path(__file__).parent / "results" / "workbench_cpu.json"
SIZES = [(12, 12, 200), (12, 12, 512), (1, 1, 2048)]

HOVER = """async ([x, y, step]) => {
  const svg = document.querySelector("svg[data-focus=map]");
  const times = [];
  for (let n = 0; n < 20; n++) {
    const start = performance.now();
    svg.dispatchEvent(new PointerEvent("pointermove", { clientX: x + step * n, clientY: y + step * n, bubbles: true }));
    await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
    times.push(performance.now() - start);
  }
  return times;
}"""
REDRAW = """async () => {
  const start = performance.now();
  location.hash = "row=7&column=5";
  await new Promise((resolve) => addEventListener("hashchange", resolve, { once: true }));
  const main = document.getElementById("main");
  while (main.getAttribute("aria-busy") !== "false") await new Promise((resolve) => setTimeout(resolve, 1));
  await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
  return performance.now() - start;
}"""


def main() -> None:
    """Measure, write, print."""
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("there is no chromium here: apt-get install chromium")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        rows = [measure(browser, *size) for size in SIZES]
        result = {**about(), "command": "python -m benchmarks.workbench", "browser": browser.version, "pages": rows}
        browser.close()
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    for row in rows:
        print(row)


def measure(browser: Browser, layers: int, heads: int, tokens: int) -> dict[str, Any]:
    """One page, opened three times; medians."""
    generator = torch.Generator().manual_seed(0)
    weights = [(2 * torch.randn(heads, tokens, tokens, generator=generator)).softmax(-1) for _ in range(layers)]
    server = qkv.look(attention=weights, tokens=[f"t{n}" for n in range(tokens)]).server()
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        found = [visit(browser.new_page(), server.address) for _ in range(3)]
    finally:
        server.stop()
        thread.join()
    medians = {name: round(median(one[name] for one in found), 3) for name in found[0]}
    return {"layers": layers, "heads": heads, "tokens": tokens, **medians}


def visit(page: Page, address: str) -> dict[str, float]:
    """Seconds and milliseconds of one visit, and the elements of the page."""
    start = perf_counter()
    page.goto(address)
    page.wait_for_selector("#weight")
    first = perf_counter() - start
    page.wait_for_selector("#main[aria-busy=false]")
    whole = perf_counter() - start
    box = page.locator("svg[data-focus=map]").bounding_box()
    assert box is not None
    hovers = page.evaluate(HOVER, [box["x"] + 90, box["y"] + 90, 9])
    found = {
        "first_map_seconds": first,
        "all_heads_seconds": whole,
        "hover_milliseconds": median(hovers),
        "slowest_hover_milliseconds": max(hovers),
        "redraw_milliseconds": page.evaluate(REDRAW),
        "elements": page.evaluate("document.querySelectorAll('*').length"),
    }
    page.close()
    return found


def table(result: dict[str, Any]) -> str:
    """The result file as Markdown."""
    lines = [
        "| layers x heads x tokens | first map | all heads | hover, median | slowest | redrawn | elements |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in result["pages"]:
        sizes = f"{row['layers']} x {row['heads']} x {row['tokens']:,}"
        opened = f"{row['first_map_seconds']:.2f} s | {row['all_heads_seconds']:.2f} s"
        hovers = f"{row['hover_milliseconds']:.0f} ms | {row['slowest_hover_milliseconds']:.0f} ms"
        lines.append(f"| {sizes} | {opened} | {hovers} | {row['redraw_milliseconds']:.0f} ms | {row['elements']} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
