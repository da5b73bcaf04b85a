"""Tiny random models of transformers with recurrent layers, without experts: rounding must not choose another one."""

import torch
import transformers

VOCABULARY = 97
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 24, "num_hidden_layers": 2, "rms_norm_eps": 1e-5}
HEADS = {"num_attention_heads": 3, "num_key_value_heads": 3, "intermediate_size": 28}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
KINDS = ["linear_attention", "full_attention"]


def qwen3_next():
    heads = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "head_dim": 8}
    dims = {"linear_key_head_dim": 7, "linear_value_head_dim": 5, "mlp_only_layers": [0, 1]}
    config = transformers.Qwen3NextConfig(**SIZES, **HEADS, **heads, **dims, layer_types=KINDS, **TOKENS)
    model = _random(transformers.Qwen3NextForCausalLM, config)
    torch.nn.init.uniform_(model.model.layers[0].linear_attn.A_log, -2, 1)  # rates as a trained model has them
    return model


def kimi_linear():
    latent = {"kv_lora_rank": 11, "qk_rope_head_dim": 2, "qk_nope_head_dim": 5, "v_head_dim": 7}
    dims = {"linear_num_heads": 3, "linear_head_dim": 7, "mlp_layer_types": ["dense", "dense"]}
    config = transformers.KimiLinearConfig(**SIZES, **HEADS, **latent, **dims, layer_types=KINDS, **TOKENS)
    return _random(transformers.KimiLinearForCausalLM, config)


def mamba2():
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 24, "num_hidden_layers": 2, "layer_norm_epsilon": 1e-5}
    heads = {"num_heads": 6, "head_dim": 8, "state_size": 7, "n_groups": 3, "chunk_size": 16}
    return _random(transformers.Mamba2ForCausalLM, transformers.Mamba2Config(**sizes, **heads, **TOKENS))


def minimax():
    dims = {"head_dim": 8, "block_size": 16, "num_local_experts": 1, "num_experts_per_tok": 1}
    # softmax comes first: their cache takes the positions of further tokens from its first layer
    config = transformers.MiniMaxConfig(**SIZES, **HEADS, **dims, layer_types=KINDS[::-1], **TOKENS)
    config._experts_implementation = "eager"
    return _random(transformers.MiniMaxForCausalLM, config)


MODELS = [qwen3_next, kimi_linear, mamba2, minimax]
CACHE = {mamba2: "cache_params"}
"""The argument that takes the cache; in the other models past_key_values."""


def _random(cls, config):
    torch.manual_seed(0)
    model = cls(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    return model


def tokens(rows, length):
    return torch.randint(3, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(1))


def states(cache):
    """Return the recurrent states of a cache, layer by layer."""
    if hasattr(cache, "linear_cache"):
        return [state for state in cache.linear_cache if len(state)]
    found = [getattr(layer, "recurrent_states", {}).get(0) for layer in cache.layers]
    return [state for state in found if state is not None]
