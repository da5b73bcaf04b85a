"""Presets for translation: Transformers whose three tables of subwords are one."""

from qkv.tasks.base import Preset


def small() -> Preset:
    """Return a Transformer of a million parameters for ten minutes on two cores."""
    return Preset(
        "encoder_decoder",
        {
            "dim": 128,
            "heads": 4,
            "hidden_dim": 512,
            "encoder_layers": 2,
            "decoder_layers": 1,
            "dropout": 0.0,
            "positions": "rope",
            "max_length": 160,
            "tied": True,
        },
        {"minutes": 10.0, "learning_rate": 3e-3, "ema_decay": 0.998, "label_smoothing": 0.1, "validate_every": 1000},
        {"source": "bpe:4000", "target": "bpe:4000", "shared": True},
    )


def large() -> Preset:
    """Return a Transformer of 23 million parameters for a GPU."""
    return Preset(
        "encoder_decoder",
        {
            "dim": 384,
            "heads": 6,
            "hidden_dim": 1536,
            "encoder_layers": 6,
            "decoder_layers": 4,
            "dropout": 0.2,
            "positions": "rope",
            "max_length": 160,
            "tied": True,
        },
        {
            "steps": 16000,
            "batch_size": 1024,
            "learning_rate": 1e-3,
            "warmup": 1000,
            "weight_decay": 0.01,
            "ema_decay": 0.999,
            "label_smoothing": 0.1,
            "validate_every": 2000,
        },
        {"source": "bpe:8000", "target": "bpe:8000", "shared": True},
    )
