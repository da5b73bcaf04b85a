"""Speed of the pronouncer versus `transformers` and CTranslate2: `python -m benchmarks.pronounce_speed`.

    python -m benchmarks.pronounce_speed --test-file test12000.tsv [--model runs/mine] [--ctranslate2 FOLDER]

Greedy, the model alone, on the CPU: all words sorted, as many in a call as the pronouncer gives; sorted in batches of
64; and one at a time. The peer is a Marian model of the same layers, widths and heads with weights of chance, through
`generate` with its cache. What it writes is therefore nonsense, so it is made to write just as long: one at a time as
many steps as ours takes for that very word, in a batch as many as ours takes for the longest of it, and nothing is
looked at that could stop it. CTranslate2 runs the same Marian weights in float32, converted by its own converter:

    pip install --no-deps --target FOLDER ctranslate2==4.8.4

Systems take turns, so that a busy moment hits all alike; both clocks are kept, for the processor's time is what remains
comparable where a machine is shared. Writes benchmarks/results/pronounce_speed_cpu.json.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import about
from qkv.data import pad, read_pairs
from qkv.models import EncoderDecoder
from qkv.pronunciation import NeuralG2P
from qkv.pronunciation.bundled import model_folder
from qkv.pronunciation.pronouncer import WORDS_PER_WINDOW

RESULTS = Path(__file__).parent / "results" / "pronounce_speed_cpu.json"
PEER_BATCH = 64
END, PAD = 0, 1
"""Of the peer; its other ids are ours and 2 more."""

Say = Callable[[Sequence[int]], None]
"""Says the words of these numbers, together."""


@dataclass(frozen=True)
class Words:
    """Words and the number of decoding steps of each."""

    texts: list[str]
    ids: list[list[int]]
    """For the peers, their END among them."""
    steps: list[int]

    @classmethod
    def of(cls, network: NeuralG2P, texts: list[str]) -> "Words":
        """The steps are those of our own answers, END among them."""
        encode = network.task.data.sources.encode
        said = network.predict(texts)
        steps = [1 + (len(ways[0].phones) if ways else 0) for ways in said]
        return cls(texts, [[2 + letter for letter in encode(text)] + [END] for text in texts], steps)

    def batches(self, size: int) -> list[list[int]]:
        """The numbers of the words, sorted by their letters."""
        order = sorted(range(len(self.texts)), key=lambda number: len(self.texts[number]))
        return [order[start : start + size] for start in range(0, len(order), size)]


def ours(network: NeuralG2P, words: Words) -> Say:
    """Measure the public call."""

    def say(numbers: Sequence[int]) -> None:
        network.predict([words.texts[number] for number in numbers])

    return say


def marian(model: EncoderDecoder) -> Any:
    """`transformers`' Marian of our layers, widths and heads; one table of tokens serves all three ends."""
    from transformers import MarianConfig, MarianMTModel  # noqa: PLC0415

    config, tokens = model.config, 2 + max(model.source_embedding.num_embeddings, model.target_embedding.num_embeddings)
    sides: dict[str, Any] = {
        f"{side}_{name}": value
        for side, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers))
        for name, value in (("layers", layers), ("attention_heads", config.heads), ("ffn_dim", config.hidden_dim))
    }
    peer = MarianMTModel(
        MarianConfig(
            vocab_size=tokens,
            d_model=config.dim,
            max_position_embeddings=2 * config.max_length,
            activation_function="gelu",
            pad_token_id=PAD,
            eos_token_id=END,
            decoder_start_token_id=PAD,
            forced_eos_token_id=None,
            scale_embedding=True,
            **sides,
        )
    )
    return peer.eval()


def their_generate(peer: Any, words: Words) -> Say:
    """Greedy, with the cache; no END to look for, so it writes exactly the requested number of tokens."""
    from transformers import GenerationConfig  # noqa: PLC0415

    always = {"num_beams": 1, "do_sample": False, "decoder_start_token_id": PAD, "pad_token_id": PAD}
    told = {steps: GenerationConfig(max_new_tokens=steps, **always) for steps in set(words.steps)}

    def say(numbers: Sequence[int]) -> None:
        inputs, mask = pad([words.ids[number] for number in numbers])
        steps = max(words.steps[number] for number in numbers)
        with torch.inference_mode():
            found = peer.generate(inputs, attention_mask=mask.long(), generation_config=told[steps])
        assert found.shape[1] == 1 + steps

    return say


def ctranslate2(peer: Any, words: Words, folder: Path, threads: int) -> Say:
    """The same weights in CTranslate2, float32; END is forbidden, so it writes the requested number of tokens."""
    sys.path.append(str(folder))
    from ctranslate2 import Translator  # type: ignore[import-not-found]  # noqa: PLC0415
    from ctranslate2.converters.transformers import MarianMTLoader  # type: ignore[import-not-found]  # noqa: PLC0415

    tokens = ["</s>", *(f"t{number}" for number in range(1, peer.config.vocab_size - 1))]
    spec = MarianMTLoader().get_model_spec(peer)
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    spec.config.eos_token = spec.config.decoder_start_token = tokens[END]
    spec.config.unk_token = tokens[PAD]
    with tempfile.TemporaryDirectory() as converted:
        spec.validate()
        spec.save(converted)
        translator = Translator(converted, compute_type="float32", inter_threads=1, intra_threads=threads)

    def say(numbers: Sequence[int]) -> None:
        given = [[tokens[token] for token in words.ids[number]] for number in numbers]
        longest = max(words.steps[number] for number in numbers)
        length = {"min_decoding_length": longest, "max_decoding_length": longest}
        found = translator.translate_batch(given, beam_size=1, return_end_token=False, **length)
        assert all(len(one.hypotheses[0]) == longest for one in found)

    return say


def measure(systems: dict[str, Say], batches: list[list[int]], rounds: int) -> dict[str, Any]:
    """Return words per second of each by both clocks, the median of rounds, and ours by theirs in the same round."""
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in systems}
    count = sum(map(len, batches))
    for say in systems.values():
        say(batches[len(batches) // 2])  # the first call is slower
    for _ in range(rounds):
        for name, say in systems.items():
            wall, processor = time.perf_counter(), time.process_time()
            for batch in batches:
                say(batch)
            rates[name].append((count / (time.perf_counter() - wall), count / (time.process_time() - processor)))
    clocks = ("second", "processor_second")
    first, *others = rates
    record: dict[str, Any] = {"words": count, "batch_size": max(map(len, batches)), "rounds": rounds}
    for name, found in rates.items():
        per = {f"words_per_{clock}": [one[index] for one in found] for index, clock in enumerate(clocks)}
        record[name] = {key: statistics.median(values) for key, values in per.items()}
    for name in others:
        both = list(zip(rates[first], rates[name], strict=True))
        for index, clock in enumerate(clocks):
            record[name][f"ours_by_theirs_{clock}"] = statistics.median(a[index] / b[index] for a, b in both)
    return record


def main() -> None:
    """Measure, write."""
    given = _parse()
    torch.set_num_threads(given.threads)
    network = NeuralG2P.open(model_folder(given.model))
    assert isinstance(network.model, EncoderDecoder), "the peer is built for a Transformer"
    texts = ["".join(pair.source).lower() for pair in read_pairs(given.test_file).pairs[:: given.every]]
    words = Words.of(network, [text for text in texts if network.unsupported_reason(text) is None])
    peer = marian(network.model)
    systems = {"qkv": ours(network, words), "transformers": their_generate(peer, words)}
    versions = {"transformers": _version("transformers")}
    if given.ctranslate2 is not None:
        systems["ctranslate2"] = ctranslate2(peer, words, given.ctranslate2, given.threads)
        versions["ctranslate2"] = _version("ctranslate2")
    alone = [[number] for number in range(0, len(words.texts), max(len(words.texts) // given.alone, 1))]
    record = about()
    record["versions"] = {**record["versions"], **versions}  # type: ignore[dict-item]
    record |= {
        "command": f"python -m benchmarks.pronounce_speed --test-file {given.test_file.name} --threads {given.threads}",
        "test": {"file": given.test_file.name, "sha256": sha256(given.test_file.read_bytes()).hexdigest()},
        "validate_every": given.every,
        "load_average_before": os.getloadavg()[0],
        "model": {
            "weights": _fingerprint(model_folder(given.model)),
            "parameters": _size(network.model),
            "parameters_of_the_peer": _size(peer),
            "steps_a_word": statistics.mean(words.steps),
        },
        "sorted, as the pronouncer batches": measure(
            {"qkv": systems["qkv"]}, words.batches(WORDS_PER_WINDOW), given.rounds
        ),
        "sorted batches of 64": measure(systems, words.batches(PEER_BATCH), given.rounds),
        "one at a time": measure(systems, alone, given.rounds),
        "load_average_after": os.getloadavg()[0],
    }
    given.out.write_text(json.dumps(record, indent=1) + "\n")
    print(table(record))


def table(record: dict[str, Any]) -> str:
    """The result file as Markdown."""
    lines = [
        "| greedy, float32 | qkv | transformers | CTranslate2 | speedup over transformers |",
        "|---|---|---|---|---|",
    ]
    for name in ("sorted, as the pronouncer batches", "sorted batches of 64", "one at a time"):
        row = record[name]
        rates = [row.get(system, {}).get("words_per_second") for system in ("qkv", "transformers", "ctranslate2")]
        ratio = row.get("transformers", {}).get("ours_by_theirs_second")
        cells = ["" if rate is None else f"{rate:,.0f} words/s" for rate in rates]
        lines.append(f"| {name} | {' | '.join(cells)} | {'' if ratio is None else f'{ratio:.1f}x'} |")
    return "\n".join(lines)


def _fingerprint(folder: Path) -> str:
    return sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def _size(model: torch.nn.Module) -> int:
    return sum(weights.numel() for weights in model.parameters())


def _version(package: str) -> str:
    return str(sys.modules[package].__version__)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--test-file", type=Path, required=True, help="TSV whose first column are the words")
    parser.add_argument("--model", type=Path, help="a run folder instead of the bundled model")
    parser.add_argument("--ctranslate2", type=Path, help="where CTranslate2 was installed; without, it is left out")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--alone", type=int, default=300, help="words pronounced one at a time")
    parser.add_argument("--every", type=int, default=1, help="only every so many-th word, for a quick look")
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
