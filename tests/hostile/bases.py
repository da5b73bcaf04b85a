"""Valid folders to start from: small untrained runs, a BERT and a GPT-2, and small data files."""

from pathlib import Path

from qkv import runs, tasks
from qkv.data import Tokenizer
from qkv.interop import save_bert, save_gpt2
from qkv.models import Decoder, DecoderConfig, Encoder, EncoderConfig
from qkv.train import create_run
from tests.tasks.tiny import TINY, write_pairs

TEXT = "The cat sat on the mat. A dog ran to the red house, and the bird sang.\n\n"
SMALL = {"dim": 32, "heads": 2, "hidden_dim": 12, "max_length": 24}
ONE_STEP = {"steps": 1, "batch_size": 4, "validate_every": 1}


def make_bases(folder: Path) -> None:
    """Write every valid folder and file below `folder`."""
    (folder / "text.txt").write_text(TEXT * 200)
    (folder / "points.csv").write_text("".join(f"{n % 7},{n % 5},{'ab'[n % 2]}\n" for n in range(40)))
    pairs = write_pairs(folder)
    text = {"source": str(folder / "text.txt"), "tokenizer": "characters", "size": 40}
    _save_run(folder / "xor", "xor", {})
    _save_run(folder / "recall", "recall", {"model": {"dim": 32, "heads": 2, "layers": 2}, "data": TINY})
    _save_run(folder / "pairs", "pairs", {"model": {**SMALL, "encoder_layers": 1, "decoder_layers": 1}, "data": pairs})
    _save_run(folder / "recurrent", "pairs", {"data": pairs}, "recurrent")
    _save_run(folder / "text", "text", {"model": {**SMALL, "layers": 1}, "data": {**text, "length": 16}})
    _save_run(folder / "words", "words", {"model": {"dim": 8}, "data": {"source": str(folder / "text.txt")}})
    _save_huggingface(folder)


def _save_run(folder: Path, name: str, changes: dict, preset: str | None = None) -> None:
    config = runs.configure(name, runs.preset(name, preset), {**changes, "train": ONE_STEP})
    task = tasks.tasks[name].load(config.data)
    run = create_run(folder)
    runs.save_config(run, config, task)
    run.save_weights(runs.build(config, task).state_dict())


def _save_huggingface(folder: Path) -> None:
    tokenizer = Tokenizer.train([TEXT], "wordpiece", 80)
    tokens = len(tokenizer)
    save_bert(Encoder(EncoderConfig(**SMALL, layers=1), tokens), folder / "bert")
    save_gpt2(Decoder(DecoderConfig(**SMALL, layers=1, positions="learned"), tokens), folder / "gpt2")
    for name in ("bert", "gpt2"):
        tokenizer.save(folder / name / "tokenizer.json")
