"""Layers that models are assembled from."""

from .blocks import DecoderBlock as DecoderBlock
from .blocks import EncoderBlock as EncoderBlock
from .convolution import ShortConvolution as ShortConvolution
from .dense import Dense as Dense
from .feed_forward import FeedForward as FeedForward
from .multi_head import Context as Context
from .multi_head import Heads as Heads
from .multi_head import HeadsState as HeadsState
from .multi_head import MultiHead as MultiHead
from .packing import Packing as Packing
from .packing import pack_documents as pack_documents
from .recurrent import RecurrentCell as RecurrentCell
from .residual import PostNorm as PostNorm
from .residual import PreNorm as PreNorm
from .residual import ScaledBranch as ScaledBranch
