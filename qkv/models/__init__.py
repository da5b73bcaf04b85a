"""Model families: one file each."""

from .decoder import Decoder as Decoder
from .decoder import DecoderConfig as DecoderConfig
from .decoder import DecoderState as DecoderState
from .encoder_decoder import EncoderDecoder as EncoderDecoder
from .encoder_decoder import EncoderDecoderConfig as EncoderDecoderConfig
from .encoder_decoder import EncoderDecoderState as EncoderDecoderState
from .recurrent import Recurrent as Recurrent
from .recurrent import RecurrentConfig as RecurrentConfig
from .recurrent import RecurrentState as RecurrentState
from .registry import Family as Family
from .registry import families as families
from .registry import family as family
