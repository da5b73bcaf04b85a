"""Decoding, written once for every model: greedily, by beam, by sampling."""

from .beam import beam as beam
from .beam import beam_with_trees as beam_with_trees
from .greedy import greedy as greedy
from .greedy import likeliest as likeliest
from .hypothesis import Hypothesis as Hypothesis
from .limits import Limits as Limits
from .protocol import Decodable as Decodable
from .protocol import State as State
from .sample import drawing as drawing
from .sample import sample as sample
from .stream import stream as stream
from .tree import Node as Node
from .tree import SearchTree as SearchTree
