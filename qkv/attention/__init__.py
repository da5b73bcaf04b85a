"""Attention mechanisms: the table of contents. A new kind is one file and one line here."""

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
from .elu import Elu as Elu
from .feature_map import FeatureMap as FeatureMap
from .kv_cache import KeyValues as KeyValues
from .linear import Linear as Linear
from .recurrent_state import Memory as Memory
from .scored import Scored as Scored
from .softmax import Softmax as Softmax
from .taylor import Taylor as Taylor
from .taylor import taylor_features as taylor_features
