"""Hugging Face: qkv attention inside `transformers` models, and weights of BERT and GPT-2 in qkv models."""

from .bert import load_bert as load_bert
from .bert import save_bert as save_bert
from .gpt2 import load_gpt2 as load_gpt2
from .gpt2 import save_gpt2 as save_gpt2
from .huggingface.fallbacks import replace_fallbacks as replace_fallbacks
from .huggingface.fallbacks import restore_fallbacks as restore_fallbacks
from .huggingface.register import attention_kind as attention_kind
from .huggingface.register import load_pretrained as load_pretrained
from .huggingface.register import register_attention as register_attention
from .huggingface.register import save_pretrained as save_pretrained
from .minilm import minilm as minilm
