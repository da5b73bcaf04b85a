"""Other people's formats: attention kinds inside `transformers`, and its weights in our models."""

from . import transformers as transformers
