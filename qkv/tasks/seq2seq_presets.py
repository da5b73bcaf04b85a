"""Presets for mapping strings to strings."""

from qkv.tasks.base import Preset


def quick() -> Preset:
    """Return a small Transformer for four minutes on two cores."""
    return Preset(
        "encoder_decoder",
        {
            "dim": 128,
            "heads": 4,
            "hidden_dim": 256,
            "encoder_layers": 2,
            "decoder_layers": 1,
            "dropout": 0.0,
            "positions": "rope",
            "convolution": 5,
            "max_length": 64,
        },
        {"minutes": 4.0, "learning_rate": 3e-3, "ema_decay": 0.998, "label_smoothing": 0.1, "validate_every": 1000},
    )


def recurrent() -> Preset:
    """Return an LSTM with additive attention for four minutes on two cores."""
    return Preset(
        "recurrent",
        {"dim": 192, "dropout": 0.0, "max_length": 64},
        {"minutes": 4.0, "learning_rate": 3e-3, "ema_decay": 0.998, "label_smoothing": 0.1, "validate_every": 1000},
    )


def large() -> Preset:
    """Return a Transformer of 7 million parameters: seven minutes on a GPU with --graphs."""
    return Preset(
        "encoder_decoder",
        {
            "dim": 256,
            "encoder_layers": 6,
            "decoder_layers": 2,
            "dropout": 0.25,
            "attention": "softmax(dropout=0.125)",
            "cross": "softmax(dropout=0.125)",
            "positions": "rope",
            "convolution": 3,
            "max_length": 64,
        },
        {
            "steps": 24000,
            "batch_size": 1024,
            "learning_rate": 1.5e-3,
            "warmup": 1000,
            "weight_decay": 0.05,
            "ema_decay": 0.999,
            "label_smoothing": 0.1,
            "validate_every": 2000,
        },
    )


def pupil() -> Preset:
    """Return a Transformer of 2 million parameters with one decoder layer, to be distilled from larger ones."""
    return Preset(
        "encoder_decoder",
        {
            "dim": 192,
            "heads": 4,
            "hidden_dim": 384,
            "encoder_layers": 6,
            "decoder_layers": 1,
            "dropout": 0.05,
            "positions": "rope",
            "max_length": 64,
        },
        {
            "steps": 30000,
            "batch_size": 1024,
            "learning_rate": 2e-3,
            "warmup": 1000,
            "ema_decay": 0.999,
            "validate_every": 1000,
        },
    )
