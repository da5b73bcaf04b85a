"""Model families: one file each."""

from .convolutional import Convolutional as Convolutional
from .convolutional import ConvolutionalConfig as ConvolutionalConfig
from .decoder import Decoder as Decoder
from .decoder import DecoderConfig as DecoderConfig
from .decoder import DecoderState as DecoderState
from .encoder import Encoder as Encoder
from .encoder import EncoderConfig as EncoderConfig
from .encoder import mean_of_tokens as mean_of_tokens
from .encoder_decoder import EncoderDecoder as EncoderDecoder
from .encoder_decoder import EncoderDecoderConfig as EncoderDecoderConfig
from .encoder_decoder import EncoderDecoderState as EncoderDecoderState
from .network import Network as Network
from .network import NetworkConfig as NetworkConfig
from .network import logistic_regression as logistic_regression
from .network import softmax_regression as softmax_regression
from .perceptron import Perceptron as Perceptron
from .perceptron import PerceptronConfig as PerceptronConfig
from .polynomial import Polynomial as Polynomial
from .recurrent import Recurrent as Recurrent
from .recurrent import RecurrentConfig as RecurrentConfig
from .recurrent import RecurrentState as RecurrentState
from .registry import Family as Family
from .registry import families as families
from .registry import family as family
