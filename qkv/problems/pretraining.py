"""Group B: pretraining BERT and GPT on one text."""

from qkv.problems.expectation import Answer, AtLeast
from qkv.problems.record import register_problem


@register_problem(
    "B9",
    hand_written="BERT is bidirectional and parallel, the original Transformer is not",
    slip="the original encoder is bidirectional and parallel too; what BERT changes is the objective",
    expected={
        "parameters of a block: original encoder, BERT, GPT": [33_472, 33_472, 33_472],
        "the first token sees the last: original encoder, BERT, GPT": [True, True, False],
        "can write on: BERT, GPT": [False, True],
        "BERT's hidden tokens, over the best constant guess": AtLeast(1.5),
        "GPT's next tokens, over the best constant guess": AtLeast(1.5),
    },
    slow=True,
)
def filling_in_and_writing_on() -> Answer:
    """BERT against the original Transformer, and GPT against BERT on one text: who generates, who fills in?

    The same blocks with two objectives learn from Python's documentation, 400 updates each.
    """
    from typing import Any

    import torch

    from qkv.decode import SearchLimits, greedy
    from qkv.inference import MaskedLM
    from qkv.models import Decoder, DecoderConfig, Encoder, EncoderConfig, EncoderDecoder, EncoderDecoderConfig
    from qkv.problems import NextTokenWindows, fit
    from qkv.tasks import MaskedTask
    from qkv.train import Settings

    job = MaskedTask.load({"source": "python", "size": 600, "length": 32, "examples": 256})
    tokens, segments = job.sizes()
    sizes: dict[str, Any] = {"dim": 64, "heads": 4, "hidden_dim": 128, "dropout": 0.0, "max_length": 64}
    torch.manual_seed(0)
    original = EncoderDecoder(EncoderDecoderConfig(**sizes), tokens, tokens)
    bert = Encoder(EncoderConfig(**sizes), tokens, segments)
    gpt = Decoder(DecoderConfig(**sizes), tokens)
    blocks = [original.encoder[0], bert.blocks[0], gpt.blocks[0]]

    def sees(block: torch.nn.Module) -> bool:
        row = torch.randn(1, 9, 64)
        other = torch.cat((row[:, :-1], torch.randn(1, 1, 64)), 1)
        return not torch.equal(block(row)[0, 0], block(other)[0, 0])

    # one text, two objectives: predict masked tokens, or the next token
    settings = Settings(steps=400, batch_size=32, learning_rate=5e-3, warmup=50, validate_every=400)
    bert_losses = fit(job.objective(bert, settings), settings)
    train, valid = (NextTokenWindows(job.sentence_pairs(name).tokens.long()) for name in ("train", "valid"))
    gpt_losses = fit(train.objective(gpt), settings)
    figures, right = job.evaluate(bert, "valid"), valid.accuracy(gpt)
    *prompt, last = job.tokenizer.encode("New in version 3")
    (written,) = greedy(gpt, torch.tensor([prompt]), None, SearchLimits(max_length=12, start=last))
    ((fillers,),) = MaskedLM(bert, job.tokenizer).fill(["New in version 3 [MASK] 8"], best=3)
    return {
        "parameters of a block: original encoder, BERT, GPT": [sum(p.numel() for p in b.parameters()) for b in blocks],
        "the first token sees the last: original encoder, BERT, GPT": [sees(block.eval()) for block in blocks],
        "can write on: BERT, GPT": [hasattr(model, "start") and hasattr(model, "step") for model in (bert, gpt)],
        "BERT fills in New in version 3 [MASK] 8": {one.text: one.probability for one in fillers},
        "GPT writes on New in version 3": job.tokenizer.decode(written.tokens),
        "BERT's hidden tokens, over the best constant guess": figures["masked_accuracy"] / figures["unigram_accuracy"],
        "GPT's next tokens, over the best constant guess": right / valid.constant_accuracy(),
        "named rightly: BERT, GPT": [figures["masked_accuracy"], right],
        "loss of every update": {"BERT": bert_losses, "GPT": gpt_losses},
    }
