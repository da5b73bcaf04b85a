"""Our pronouncer versus g2p_en, Phonetisaurus and espeak-ng, in one run: `python -m benchmarks.pronounce_peers`.

    python -m benchmarks.pronounce_peers --test-file test12000.tsv --train-file g014b2b.train [--run runs/mine ...]

Each says every word by itself, without a dictionary, and is compared with the closest reference, without stress. g2p_en
runs on its own weights through numpy (its package does not start offline); its training data held these very words.
Phonetisaurus is trained here on the training file, unless its model is there already; espeak-ng writes IPA of another
dialect, which is mapped, so its figures are approximate. What is not installed is skipped, and the result says so:

    python -m venv runs/peers && runs/peers/bin/pip install --no-deps phonetisaurus==0.3.0
    runs/peers/bin/pip download --no-deps -d runs/peers/wheels g2p_en==2.1.0          (apt install espeak-ng)

Writes benchmarks/results/pronounce_peers.json. Times on a busy machine are worth nothing: its load is in the file.
"""

import argparse
import io
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.machine import about
from qkv.data import Pair, read_pairs
from qkv.metrics import error_rates
from qkv.pronunciation import NeuralG2P, strip_stress
from qkv.pronunciation.arpabet import CONSONANTS, STRESSES, VOWELS
from qkv.pronunciation.bundled import FOLDER, model_folder
from qkv.pronunciation.measure import wilson_interval

BEAMS = 4
"""Beam width of `Pronouncer` and `qkv pronounce`."""
ALONE = 100
"""Words pronounced one at a time, to measure latency."""
NOTE = (
    f"No dictionary, no stress, closest reference. qkv runs with its default, a beam of {BEAMS} and the joint model, "
    "and greedy with the network alone; the others give their best prediction. g2p_en is its own weights run with "
    "numpy, and was trained on these words. Phonetisaurus was trained by the script, before this run if its `command` "
    "names no training file. The IPA of espeak-ng is mapped to the nearest phones, so its figures are approximate. "
    f"words/s is for all words in one call; one at a time is for {ALONE} words. Phonetisaurus and espeak-ng are "
    "programs that each call starts, so one at a time every word includes the start"
)
"""How it was measured; the page adds the last full stop."""
RESULTS = Path(__file__).parent / "results" / "pronounce_peers.json"
G2P_EN_SHA256 = "2a7aabf1fc7f270fcc3349881407988c9245173c2413debbe5432f4a4f31319f"

Phones = tuple[str, ...]
Say = Callable[[Sequence[str]], list[list[Phones]]]
"""words -> the best few pronunciations of each, the likeliest first"""
Array = NDArray[np.float32]


class MissingError(Exception):
    """Why a peer is not measured."""


def ours(folder: Path, best: int, beams: int) -> Say:
    """A model of ours: a beam and the joint model of its folder, or with one beam the network alone."""
    network = NeuralG2P.open(folder, joint=beams > 1)

    def say(words: Sequence[str]) -> list[list[Phones]]:
        ready = [word for word in words if network.unsupported_reason(word) is None]
        found = dict(zip(ready, network.predict(ready, best, beams=max(beams, best)), strict=True))
        return [[way.phones for way in found.get(word, ())] for word in words]

    return say


class G2pEn:
    """g2p_en's net: a GRU reads the letters, another writes at most 20 phones, greedily, without attention."""

    letters = ("<pad>", "<unk>", "</s>", *"abcdefghijklmnopqrstuvwxyz")
    start, end, longest = 2, 3, 20

    def __init__(self, wheels: Path):
        found = sorted(wheels.glob("g2p_en-2.1.0-*.whl"))
        if not found or sha256(found[0].read_bytes()).hexdigest() != G2P_EN_SHA256:
            raise MissingError(f"the wheel of g2p_en 2.1.0 is not in {wheels}, or is another")
        member = zipfile.ZipFile(found[0]).read("g2p_en/checkpoint20.npz")
        self.arrays: dict[str, Array] = dict(np.load(io.BytesIO(member), allow_pickle=False))
        self.letter_ids = {letter: index for index, letter in enumerate(self.letters)}
        self.phones = self._inventory()

    def __call__(self, words: Sequence[str]) -> list[list[Phones]]:
        """One word after the other, as the package does."""
        return [[self._say(word)] for word in words]

    def _inventory(self) -> list[str]:
        """Its phones in the order of its output: alphabetic, a vowel with each of its digits, and UW also without."""
        digits = {**dict.fromkeys(CONSONANTS, ("",)), **dict.fromkeys(VOWELS, STRESSES), "UW": ("", *STRESSES)}
        return [
            "<pad>",
            "<unk>",
            "<s>",
            "</s>",
            *(phone + digit for phone in sorted(digits) for digit in digits[phone]),
        ]

    def _say(self, word: str) -> Phones:
        read = [self.letter_ids.get(letter, 1) for letter in word.lower()] + [self.letter_ids["</s>"]]
        state = np.zeros(self.arrays["enc_w_hh"].shape[1], np.float32)
        for letter_id in read:
            state = self._step("enc", self.arrays["enc_emb"][letter_id], state)
        token, written = self.start, []
        for _ in range(self.longest):
            state = self._step("dec", self.arrays["dec_emb"][token], state)
            token = int((self.arrays["fc_w"] @ state + self.arrays["fc_b"]).argmax())
            if token == self.end:
                break
            written.append(self.phones[token])
        return tuple(written)

    def _step(self, side: str, x: Array, state: Array) -> Array:
        """h' = (1 - z) tanh(n) + z h, with reset and update gates r and z."""
        a = self.arrays
        given = np.split(a[f"{side}_w_ih"] @ x + a[f"{side}_b_ih"], 3)
        kept = np.split(a[f"{side}_w_hh"] @ state + a[f"{side}_b_hh"], 3)
        reset, update = (1 / (1 + np.exp(-(given[gate] + kept[gate]))) for gate in (0, 1))
        return (1 - update) * np.tanh(given[2] + reset * kept[2]) + update * state


def phonetisaurus(folder: Path, train_file: Path | None, best: int) -> Say:
    """The joint n-gram model, trained on the training file; its model stays in the folder."""
    program = (folder / "bin" / "phonetisaurus").absolute()
    if not program.exists():
        raise MissingError(f"phonetisaurus is not installed in {folder}")
    model = (folder / "standard.fst").absolute()
    if not model.exists():
        if train_file is None:
            raise MissingError("phonetisaurus has no model and no --train-file to make one of")
        _train_phonetisaurus(program, model, train_file)

    def say(words: Sequence[str]) -> list[list[Phones]]:
        command = [str(program), "predict", "--model", str(model), "--nbest", str(best)]
        done = subprocess.run(command, input="\n".join(words), capture_output=True, text=True, check=True)
        found: dict[str, list[Phones]] = {}
        for line in done.stdout.splitlines():
            word, *phones = line.split()
            found.setdefault(word, []).append(tuple(phones))
        return [found.get(word, []) for word in words]

    return say


def _train_phonetisaurus(program: Path, model: Path, train_file: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        lexicon = Path(folder) / "train.dict"
        pairs = read_pairs(train_file).pairs
        lexicon.write_text("".join(f"{''.join(p.source).lower()} {' '.join(t)}\n" for p in pairs for t in p.targets))
        subprocess.run([program, "train", "--model", model, lexicon], capture_output=True, check=True)


_ESPEAK_SYMBOLS = (
    "tʃ dʒ aɪ aʊ eɪ oʊ ɔɪ ɜɹ ɚɹ ɜ ɚ ɾ ʔ x ɬ ɑ æ ʌ ə ɐ ᵻ ɔ ɛ ɪ i ʊ u o e a p b t d k ɡ f v θ ð s z ʃ ʒ h m n ŋ l ɹ r w j"
)
_NEAREST = (
    "CH JH AY AW EY OW OY ER ER ER ER T T K L AA AE AH AH AH IH AO EH IH IY UH UW AO EH AE P B T D K G F V TH DH S Z"
)
_NEAREST += " SH ZH HH M N NG L R R W Y"
_ESPEAK = {**dict(zip(_ESPEAK_SYMBOLS.split(), _NEAREST.split(), strict=True)), "n̩": "AH N", "l̩": "AH L"}
_ESPEAK_PIECE = re.compile("|".join(sorted(_ESPEAK, key=len, reverse=True)))


def from_espeak(word: str) -> Phones:
    """Map a word in espeak-ng's IPA to the nearest phones, with stress."""
    phones, digit = [], STRESSES[0]
    for piece in re.findall(f"[ˈˌ]|{_ESPEAK_PIECE.pattern}", word.replace("ː", "")):
        if piece in "ˈˌ":
            digit = "1" if piece == "ˈ" else "2"
            continue
        for phone in _ESPEAK[piece].split():
            phones.append(phone + digit if phone in VOWELS else phone)
            digit = STRESSES[0] if phone in VOWELS else digit
    return tuple(phones)


def espeak() -> Say:
    """espeak-ng's American English; its IPA mapped to the nearest phones."""
    if shutil.which("espeak-ng") is None:
        raise MissingError("espeak-ng is not installed")

    def say(words: Sequence[str]) -> list[list[Phones]]:
        command = ["espeak-ng", "-q", "--ipa", "-v", "en-us"]
        done = subprocess.run(command, input="\n".join(words) + "\n", capture_output=True, text=True, check=True)
        lines = [re.sub("[ˈˌː]", "", line.strip()) for line in done.stdout.splitlines()]
        if len(lines) != len(words):
            raise MissingError(f"espeak-ng answered {len(lines)} lines to {len(words)} words")
        pieces = (" ".join(_ESPEAK[piece] for piece in _ESPEAK_PIECE.findall(line)) for line in lines)
        return [[tuple(piece.split())] for piece in pieces]

    return say


def score(say: Say, pairs: Sequence[Pair], *, stress: bool, best: int) -> dict[str, Any]:
    """Words and phones wrong of the first answer, and how often the right one is not among the first few.

    Words are pronounced one at a time only for one answer, which is what is timed.
    """
    words = ["".join(pair.source).lower() for pair in pairs]
    say(words[:64])
    started = time.perf_counter()
    said = say(words)
    batched = time.perf_counter() - started
    started = time.perf_counter()
    single = words[: ALONE if best == 1 else 1]
    for word in single:
        say([word])
    alone = time.perf_counter() - started
    bare = (lambda phones: phones) if stress else strip_stress
    lists = [list(dict.fromkeys(bare(phones) for phones in ways))[:best] or [()] for ways in said]
    references = [[bare(target) for target in pair.targets] for pair in pairs]
    rates = error_rates([ways[0] for ways in lists], references)
    low, high = wilson_interval(rates.wrong_sequences, rates.sequences)
    missing = sum(not set(ways) & set(right) for ways, right in zip(lists, references, strict=True))
    return {
        "words": len(words),
        "wer": rates.sequence_error_rate,
        "wer_95": [low, high],
        "per": rates.token_error_rate,
        f"missing_among_first_{best}": missing / len(words),
        "words_per_second": len(words) / batched,
        "words_per_second_one_at_a_time": len(single) / alone,
    }


def systems(arguments: argparse.Namespace) -> dict[str, Callable[[int], Say]]:
    """Every system by its name; calling one with the number of answers wanted opens it, or says why it cannot."""
    found: dict[str, Callable[[int], Say]] = {}
    if FOLDER.is_dir():
        found["qkv, bundled"] = lambda best: ours(model_folder(), best, BEAMS)
        found["qkv, bundled, greedy"] = lambda best: ours(model_folder(), best, 1)
    for run in arguments.run:
        found[f"qkv, {run.name}"] = lambda best, run=run: ours(run, best, BEAMS)  # type: ignore[misc]
    found["g2p_en 2.1.0"] = lambda best: G2pEn(arguments.peers / "wheels")
    found["phonetisaurus 0.3.0"] = lambda best: phonetisaurus(arguments.peers, arguments.train_file, best)
    found["espeak-ng, mapped"] = lambda best: espeak()
    return found


def main() -> None:
    """Measure them all, one after the other, and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--test-file", type=Path, required=True, help="TSV of words and their references")
    parser.add_argument("--train-file", type=Path, help="TSV to train Phonetisaurus on")
    parser.add_argument(
        "--run", type=Path, action="append", default=[], help="a run folder of ours, besides the bundled"
    )
    parser.add_argument("--peers", type=Path, default=Path("runs/peers"), help="where the peers were installed")
    parser.add_argument("--every", type=int, default=1, help="only every so many-th word, for a quick look")
    parser.add_argument("--best", type=int, default=5, help="how many answers to look for the right one in")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    pairs = read_pairs(arguments.test_file).pairs[:: arguments.every]
    stressed = any(phone[-1].isdigit() for pair in pairs for target in pair.targets for phone in target)
    rows: dict[str, dict[str, Any]] = {}
    for name, open_system in systems(arguments).items():
        try:
            first = score(open_system(1), pairs, stress=False, best=1)
            rows[name] = {key: value for key, value in first.items() if not key.startswith("missing")}
            if "qkv" in name or "phonetisaurus" in name:
                several = score(open_system(arguments.best), pairs, stress=False, best=arguments.best)
                rows[name] |= {key: value for key, value in several.items() if key.startswith("missing")}
            if stressed and ("qkv" in name or "g2p_en" in name):
                rows[name]["wer_with_stress"] = score(open_system(1), pairs, stress=True, best=1)["wer"]
        except MissingError as reason:
            rows[name] = {"skipped": str(reason)}
        print(name, json.dumps(rows[name]), flush=True)
    result = {
        **about(),
        "command": _command(arguments),
        "test": {"file": arguments.test_file.name, "sha256": sha256(arguments.test_file.read_bytes()).hexdigest()},
        "every": arguments.every,
        "load_average": os.getloadavg()[0],
        "note": NOTE,
        "systems": rows,
    }
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")


def _command(arguments: argparse.Namespace) -> str:
    """With the file that Phonetisaurus is trained on; without one, its model was there already."""
    files = {"--test-file": arguments.test_file, "--train-file": arguments.train_file}
    given = " ".join(f"{option} {path.name}" for option, path in files.items() if path is not None)
    return f"python -m benchmarks.pronounce_peers {given}"


def table(result: dict[str, Any]) -> str:
    """The result file as Markdown."""
    lines = ["| pronouncer | words wrong (95 %) | phones wrong | words/s | one at a time |", "|---|---|---|---|---|"]
    for name, row in result["systems"].items():
        if "skipped" not in row:
            low, high = (f"{100 * end:.1f}" for end in row["wer_95"])
            rates = f"{100 * row['wer']:.1f} % ({low} to {high}) | {100 * row['per']:.1f} %"
            speeds = f"{row['words_per_second']:,.0f} | {row['words_per_second_one_at_a_time']:,.0f}"
            lines.append(f"| {name} | {rates} | {speeds} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
