"""Prompts are continued by the fused form of the model on a CPU."""

import torch

from qkv.data import Tokenizer
from qkv.inference import PredictOptions, TextPredictor
from qkv.models import Decoder, DecoderConfig, Recurrent, RecurrentConfig
from qkv.models.fast.fused_decoder import FusedDecoderBlock

TOKENIZER = Tokenizer.train(["a text of few words, and some more words"], "characters", 30)
SIZES = {"dim": 20, "heads": 2, "hidden_dim": 29, "max_length": 40}


def answers(predictor):
    return [one["answers"] for one in predictor.predict(["a te", "of"], [0, 1])]


def test_a_decoder_is_fused_and_writes_the_same():
    model = Decoder(DecoderConfig(**SIZES), len(TOKENIZER)).eval()
    fused = TextPredictor(TOKENIZER, model, PredictOptions(tokens=9))
    plain = TextPredictor(TOKENIZER, model, PredictOptions(tokens=9))
    plain.model = model
    assert isinstance(fused.model.blocks[0], FusedDecoderBlock)
    for mine, wanted in zip(answers(fused), answers(plain), strict=True):
        assert mine[0]["text"] == wanted[0]["text"]
        assert abs(mine[0]["log_probability"] - wanted[0]["log_probability"]) < 1e-4


def test_other_models_predict_as_they_are():
    model = Recurrent(RecurrentConfig(dim=12), 5, 5).eval()
    assert TextPredictor(TOKENIZER, model, PredictOptions()).model is model
    half = Decoder(DecoderConfig(**SIZES), len(TOKENIZER)).to(torch.float16).eval()
    assert TextPredictor(TOKENIZER, half, PredictOptions()).model is half
