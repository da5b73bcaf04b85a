"""Other people's formats: attention kinds inside `transformers`, and its weights in our models."""

from .bert import load_bert as load_bert
from .bert import save_bert as save_bert
from .gpt2 import load_gpt2 as load_gpt2
from .gpt2 import save_gpt2 as save_gpt2
from .huggingface import register as transformers
from .minilm import minilm as minilm
