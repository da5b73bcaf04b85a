"""Fresh installations of the wheel, base and with each extra alone: `make test-install`.

Builds the wheel and installs it, with the versions of constraints.txt, into one new environment after the other. Then
it runs the commands of the README there, with few steps and small files. A command must succeed, or, if it needs an
extra that is not installed, end with one sentence that names the extra. Writes benchmarks/results/install.json.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import tomllib
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import about

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results" / "install.json"
EXTRAS = {
    name: frozenset(extras.split(","))
    for name, extras in {
        "base": "",
        "arrow": "arrow",
        "data": "data",
        "metrics": "metrics",
        "optimize": "optimize",
        "text": "text",
        "transformers": "transformers,text",  # transformers brings tokenizers
        "vision": "vision",
        "web": "web",
        "all": "arrow,data,metrics,optimize,text,transformers,vision,web",
    }.items()
}
"""Environment -> extras whose packages it has."""
TIMEOUT_SECONDS = 600
WRONG_USE = 2
"""Exit code of a command that cannot do what it is asked."""


@dataclass(frozen=True)
class Command:
    """A command of the README: its first words, a short form that is run, and the extra it needs."""

    name: str
    short: str
    extra: str = ""
    after_training: bool = False
    """Whether it needs a model that only an environment with the extra can train."""
    suggests: str = ""
    """The extra that it recommends on stderr where it is missing; it works without."""


COMMANDS = (
    Command("pronounce", 'pronounce "Hello, tokenizer!" --alphabet ipa', suggests="data"),
    Command("list", "list"),
    Command("show", "show pairs:large"),
    Command("check", "check --kind linear"),
    Command("cost attention", "cost attention --d-model 768 --heads 12 --n 128"),
    Command("bench attention", "bench attention --tokens 64,128 --backward"),
    Command("problems", "problems B5 D3"),
    Command("problems", "problems A1", "optimize"),
    Command("train pairs", "train pairs --train-file mine.tsv --run runs/mine --steps 2 --set model.max_length=12"),
    Command("eval --metrics", "eval runs/mine --split valid --metrics bleu,exact", "metrics"),
    Command("runs", "runs"),
    Command("predict", "predict runs/mine 12"),
    Command("look", "look runs/mine 12 --out page.html"),
    Command("serve", "serve --help"),
    Command("serve", "serve runs/nothing-here", "web"),
    Command("train classify", "train classify --train-file points.csv --run runs/points --steps 2"),
    Command("train classify", "train classify --train-file pictures.npz --run runs/pictures --steps 2"),
    Command("train classify", "train classify --train-file photos --run runs/photos --steps 2", "vision"),
    Command("predict", "predict runs/photos photos/a/0.png", "vision", after_training=True),
    Command("compare recall", "compare recall --attention softmax,taylor --set train.steps=2 --rates 0.003 --seeds 1"),
    Command("train words", "train words --train-file words.txt --run runs/words --steps 2"),
    Command("words nearest", "words nearest runs/words one"),
    Command(
        "train translate",
        "train translate --source-file a.en --target-file a.de --run runs/de --steps 2 --set data.source=bpe:300 "
        "--set data.target=bpe:300 --set model.dim=16",
        "text",
    ),
    Command("train text", "train text --train-file words.txt --run runs/gpt --steps 2", "text"),
    Command("train masked", "train masked --train-file words.txt --run runs/bert --steps 2", "text"),
    Command("embed", "embed runs/bert one two --similarities", "text", after_training=True),
    Command("train pronounce", "train pronounce --preset quick --run runs/pronounce-quick --steps 2", "data"),
)


def main() -> None:
    """Build, install, run, write, print; exit with 1 if a command did neither."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="interpreter of the new environments")
    parser.add_argument("--only", nargs="*", choices=EXTRAS, default=list(EXTRAS), help="environments")
    parser.add_argument("--newest", action="store_true", help="without constraints.txt, except for torch")
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wheel = _build(Path(folder), chosen.python)
        found = {name: _try(name, wheel, chosen.python, newest=chosen.newest) for name in chosen.only}
    about_run = {**about(), "command": "make test-install", "python": found[chosen.only[0]]["python"]}
    chosen.out.write_text(json.dumps({**about_run, "environments": found}, indent=1) + "\n")
    print(table(found))
    sys.exit(any("failed" in one["outcomes"].values() for one in found.values()))


def table(found: dict[str, dict[str, Any]]) -> str:
    """Return one line per environment: packages, size, commands that ran, that named their extra, that failed."""
    lines = [f"{'extras':14}packages    MB    ran  named its extra  failed"]
    for name, one in found.items():
        counts = [list(one["outcomes"].values()).count(word) for word in ("ran", "named its extra", "failed")]
        sizes = f"{len(one['packages']):8}{one['megabytes']:6}"
        lines.append(f"{name:14}{sizes}{counts[0]:7}{counts[1]:17}{counts[2]:8}")
    return "\n".join(lines)


def _build(folder: Path, python: str) -> Path:
    """Build the wheel from a copy of the sources, with pinned tools."""
    _venv(folder / "build", python)
    limits = {name: str(ROOT / "constraints.txt") for name in ("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT")}
    _pip(folder / "build", "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT), environment=limits)
    (wheel,) = folder.glob("*.whl")
    return wheel


def _try(name: str, wheel: Path, python: str, *, newest: bool) -> dict[str, Any]:
    """Install into a new environment, run every command there, and delete it."""
    folder = Path(tempfile.mkdtemp())
    try:
        environment, work = folder / "venv", folder / "work"
        _venv(environment, python)
        torch = re.search(r"^torch==\S+$", (ROOT / "constraints.txt").read_text(), re.M)
        assert torch
        limits = [torch[0]] if newest else ["--constraint", str(ROOT / "constraints.txt")]
        _pip(environment, "install", *limits, str(wheel) if name == "base" else f"{wheel}[{name}]")
        _write_files(environment, work)
        outcomes = {command.short: _run(command, name, environment, work) for command in COMMANDS}
        outcomes["python blocks of the README"] = _run_blocks(environment, work)
        return {
            "python": _output(environment, "-c", "import platform; print(platform.python_version())").strip(),
            "packages": _packages(environment),
            "megabytes": sum(path.lstat().st_size for path in environment.rglob("*")) // 10**6,
            "outcomes": outcomes,
        }
    finally:
        shutil.rmtree(folder)


def _run(command: Command, name: str, environment: Path, work: Path) -> str:
    """Return "ran", "named its extra", "not tried" or "failed"."""
    has_extra = not command.extra or command.extra in EXTRAS[name]
    if command.after_training and not has_extra:
        return "not tried"
    arguments = [str(environment / "bin" / "qkv"), *shlex.split(command.short)]
    done = subprocess.run(
        arguments,
        cwd=work,
        env=_environment(work),
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
    )
    outcome = judge(command, EXTRAS[name], done.returncode, done.stderr)
    print(f"{name}: qkv {command.short}: {outcome}", flush=True)
    if outcome == "failed":
        print(f"exit {done.returncode}\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}", flush=True)
    return outcome


def judge(command: Command, extras: frozenset[str], code: int, stderr: str) -> str:
    """Return "ran", "named its extra" or "failed" for a command that ended in an environment with these extras."""
    if command.extra and command.extra not in extras:
        is_named = code == WRONG_USE and _names_extra(stderr, command.extra)
        return "named its extra" if is_named else "failed"
    # a run that does not exist is refused by the server itself, so the extra is there
    expected = WRONG_USE if "nothing-here" in command.short else 0
    if command.suggests and command.suggests not in extras:
        is_quiet = _names_extra(stderr, command.suggests)
    else:
        is_quiet = "pip install" not in stderr and "Warning" not in stderr
    return "ran" if code == expected and is_quiet else "failed"


def _names_extra(stderr: str, extra: str) -> bool:
    return f'pip install "qkv[{extra}]"' in stderr and stderr.count("\n") == 1


def _run_blocks(environment: Path, work: Path) -> str:
    """Run the Python blocks of the README, with warnings as errors."""
    code = "\n".join(re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S))
    command = [str(environment / "bin" / "python"), "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=work, env=_environment(work), capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr, flush=True)
    return "failed" if done.returncode else "ran"


def _write_files(environment: Path, work: Path) -> None:
    """Write the data of the commands: pairs, points, words and pictures, these as an archive and as PNG files."""
    work.mkdir()
    (work / "mine.tsv").write_text("".join(f"{number}\t{number % 7} {number % 5}\n" for number in range(10, 100)))
    for name, word in (("a.en", "number"), ("a.de", "Zahl")):
        (work / name).write_text("".join(f"{word} {number}\n" for number in range(200)))
    corners = [(x, y, int(x != y)) for x in (0, 1) for y in (0, 1)]
    (work / "points.csv").write_text("x,y,class\n" + "".join(f"{x},{y},{label}\n" for x, y, label in 20 * corners))
    (work / "words.txt").write_text("\n\n".join(400 * ["One two three. Four five one. Two one four three five."]))
    code = (
        "import numpy; images = numpy.arange(40 * 28 * 28).reshape(40, 28, 28).astype('uint8');"
        "labels = numpy.arange(40) % 2;"
        "numpy.savez('pictures.npz', train_images=images, train_labels=labels, test_images=images, test_labels=labels)"
    )
    subprocess.run([str(environment / "bin" / "python"), "-c", code], cwd=work, check=True)
    for name, gray in (("a", 0), ("b", 64)):
        (work / "photos" / name).mkdir(parents=True)
        for number in range(20):
            (work / "photos" / name / f"{number}.png").write_bytes(_png(28, gray + number))


def _png(side: int, gray: int) -> bytes:
    """Return a square PNG image of one shade of gray, without the package pillow."""
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    rows = zlib.compress(side * (b"\0" + side * bytes([gray])))
    chunks = ((b"IHDR", header), (b"IDAT", rows), (b"IEND", b""))
    packed = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def _environment(work: Path) -> dict[str, str]:
    """Return variables without those that would let another installation in."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, "QKV_CACHE": str(work / "cache"), "HOME": str(work)}


def _venv(folder: Path, python: str) -> None:
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    pinned = re.findall(r"^(?:pip|setuptools)==\S+$", (ROOT / "constraints.txt").read_text(), re.M)
    _pip(folder, "install", *pinned)


def _pip(folder: Path, *arguments: str, environment: dict[str, str] | None = None) -> None:
    command = [str(folder / "bin" / "python"), "-m", "pip", "-qq", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True, env={**os.environ, **(environment or {})})


def _output(environment: Path, *arguments: str) -> str:
    command = [str(environment / "bin" / "python"), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _packages(environment: Path) -> dict[str, str]:
    listed = json.loads(_output(environment, "-m", "pip", "list", "--format", "json"))
    return {one["name"]: one["version"] for one in listed}


def declared_extras() -> set[str]:
    """Return the extras that the package has for users."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return set(project["optional-dependencies"]) - {"dev", "docs"}


if __name__ == "__main__":
    main()
