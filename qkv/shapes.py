"""The glossary: one name per axis, used in types, cost formulas, errors and docs.

batch       sequences that know nothing of each other
heads       attention heads of the queries
key_heads   attention heads of keys and values; divides heads (grouped queries)
queries     positions that ask
keys        positions that answer
key_dim     width of one query or key
value_dim   width of one value or output
features    width of a key after a feature map
time        positions of one sequence
dim         width of a model
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor

Queries = Float[Tensor, "batch heads queries key_dim"]
Keys = Float[Tensor, "batch key_heads keys key_dim"]
Values = Float[Tensor, "batch key_heads keys value_dim"]
Outputs = Float[Tensor, "batch heads queries value_dim"]
Weights = Float[Tensor, "batch heads queries keys"]

Asking = Float[Tensor, "*rows queries key_dim"]
Answering = Float[Tensor, "*rows keys key_dim"]
Similarities = Float[Tensor, "*rows queries keys"]
Vectors = Float[Tensor, "*axes key_dim"]
Features = Float[Tensor, "*axes features"]

Mask = Bool[Tensor, "..."]
Bias = Float[Tensor, "#batch heads queries keys"]
StepBias = Float[Tensor, "#batch heads queries all_keys"]
Decay = Float[Tensor, " heads"]
Rows = Int[Tensor, " rows"]

Index = Int[Tensor, " time"]
QueryIndex = Int[Tensor, " queries"]
KeyIndex = Int[Tensor, " keys"]
Hidden = Float[Tensor, "batch time dim"]
