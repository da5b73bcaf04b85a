"""What models are assembled from."""

from .blocks import DecoderBlock as DecoderBlock
from .blocks import EncoderBlock as EncoderBlock
from .convolution import ShortConvolution as ShortConvolution
from .feed_forward import FeedForward as FeedForward
from .multi_head import Context as Context
from .multi_head import Heads as Heads
from .multi_head import HeadsState as HeadsState
from .multi_head import MultiHead as MultiHead
from .residual import NormAfter as NormAfter
from .residual import NormBefore as NormBefore
