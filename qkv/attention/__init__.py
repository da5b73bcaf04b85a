"""Attention mechanisms. A new kind is one file and one line here.

>>> import torch
>>> from qkv.attention import Taylor
>>> q, k, v = torch.randn(3, 2, 4, 16, 8)  # each (batch, heads, time, dim)
>>> taylor = Taylor(order=2)
>>> prompt, token = slice(0, 15), slice(15, 16)
>>> state = taylor.start(batch=2, heads=4, key_dim=8, value_dim=8)
>>> _, state = taylor.step(q[:, :, prompt], k[:, :, prompt], v[:, :, prompt], state)  # prefill
>>> out, state = taylor.step(q[:, :, token], k[:, :, token], v[:, :, token], state)  # decode one token
>>> torch.allclose(out, taylor(q, k, v, causal=True)[:, :, token], atol=1e-4)
True
"""

from .additive import Additive as Additive
from .attend import attend as attend
from .attend import build as build
from .attend import parse as parse
from .attend import weights as weights
from .base import Attention as Attention
from .base import State as State
from .base import kinds as kinds
from .base import register as register
from .contract.cases import Case as Case
from .contract.check import Result as Result
from .contract.check import check as check
from .delta import Delta as Delta
from .elu import Elu as Elu
from .feature_map import FeatureMap as FeatureMap
from .kv_cache import KVCache as KVCache
from .law import Law as Law
from .law import ScoreTerms as ScoreTerms
from .linear import Linear as Linear
from .parallel.group import SequenceGroup as SequenceGroup
from .parallel.sequence_parallel import SequenceParallel as SequenceParallel
from .recurrent_state import RecurrentState as RecurrentState
from .scored import Scored as Scored
from .softmax import Softmax as Softmax
from .state import RaggedState as RaggedState
from .state import StateValue as StateValue
from .taylor import Taylor as Taylor
from .taylor import taylor_features as taylor_features
