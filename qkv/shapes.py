"""Axis names, used in types, cost formulas, errors and docs.

batch       independent sequences
heads       attention heads of the queries
key_heads   attention heads of keys and values; divides heads (grouped-query attention)
queries     number of queries
keys        number of keys
key_dim     width of one query or key (d_k)
value_dim   width of one value or output (d_v)
features    width of a key after a feature map
time        length of a sequence
dim         width of a model (d_model)
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor

Queries = Float[Tensor, "batch heads queries key_dim"]
Keys = Float[Tensor, "batch key_heads keys key_dim"]
Values = Float[Tensor, "batch key_heads keys value_dim"]
Outputs = Float[Tensor, "batch heads queries value_dim"]
Weights = Float[Tensor, "batch heads queries keys"]

QueryRows = Float[Tensor, "*rows queries key_dim"]
KeyRows = Float[Tensor, "*rows keys key_dim"]
KernelMatrix = Float[Tensor, "*rows queries keys"]
Vectors = Float[Tensor, "*axes key_dim"]
Features = Float[Tensor, "*axes features"]

Mask = Bool[Tensor, "..."]
Bias = Float[Tensor, "#batch heads queries keys"]
StepBias = Float[Tensor, "#batch heads queries all_keys"]
Decay = Float[Tensor, "..."]  # (heads,), (batch, heads, keys) or (batch, heads, keys, key_dim)
Beta = Float[Tensor, "batch gate_heads keys"]  # heads or key_heads
Starts = Bool[Tensor, "batch keys"]
Rows = Int[Tensor, " rows"]

Index = Int[Tensor, "... time"]
QueryIndex = Int[Tensor, "... queries"]  # (queries,), or (batch, queries) where rows begin at different places
KeyIndex = Int[Tensor, " keys"]
Hidden = Float[Tensor, "batch time dim"]
