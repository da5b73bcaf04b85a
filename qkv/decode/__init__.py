"""Decoding, written once for every model: greedy search, beam search and sampling."""

from .beam import beam as beam
from .beam import beam_with_trees as beam_with_trees
from .greedy import argmax_token as argmax_token
from .greedy import greedy as greedy
from .hypothesis import Hypothesis as Hypothesis
from .limits import SearchLimits as SearchLimits
from .protocol import Decodable as Decodable
from .protocol import DecodingState as DecodingState
from .sample import sample as sample
from .sample import sampler as sampler
from .stream import stream as stream
from .tree import Node as Node
from .tree import SearchTree as SearchTree
