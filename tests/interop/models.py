"""Tiny random models of transformers, and attention kinds written down once more, as plain matrices."""

import torch
import transformers
from torch.nn import functional
from transformers.masking_utils import eager_mask

KINDS = ("softmax", "linear", "elu", "taylor")
SIZES = {
    "vocab_size": 97,
    "hidden_size": 24,
    "intermediate_size": 29,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "max_position_embeddings": 64,
}


def bert(implementation="eager", **changes):
    config = transformers.BertConfig(**SIZES, **changes)
    return _random(transformers.BertModel, config, implementation)


def llama(implementation="eager", **changes):
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2, **changes)
    return _random(transformers.LlamaForCausalLM, config, implementation)


def _random(cls, config, implementation):
    torch.manual_seed(0)
    model = cls(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:  # wide enough that the kinds differ
            torch.nn.init.normal_(parameter, std=0.2)
    model.set_attn_implementation(implementation)
    return model


@torch.no_grad()
def answer(model, tokens, **options):
    return model(tokens, **options)[0]


def tokens(rows, length):
    return torch.randint(1, SIZES["vocab_size"], (rows, length), generator=torch.Generator().manual_seed(1))


def register_plain():
    """plain_softmax, plain_linear, ...: the whole matrix, hidden pairs set to zero, divided by its sum."""
    for kind in KINDS:
        transformers.AttentionInterface.register(f"plain_{kind}", _plain(kind))
        transformers.AttentionMaskInterface.register(f"plain_{kind}", eager_mask)


def _plain(kind):
    def attend(module, query, key, value, attention_mask, scaling, **_):
        group = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(group, 1) for x in (key, value))
        weights = _similarity(kind, query, key, scaling)
        if attention_mask is not None:
            weights = weights * (attention_mask == 0)
        if kind != "linear":
            weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-30)
        return (weights @ value).transpose(1, 2), weights

    return attend


def _similarity(kind, query, key, scaling):
    score = query @ key.transpose(-1, -2) * scaling
    if kind == "softmax":
        return score.exp()
    if kind == "linear":
        return score
    if kind == "taylor":
        return 1 + score + score**2 / 2
    return (functional.elu(query) + 1) @ (functional.elu(key) + 1).transpose(-1, -2)
