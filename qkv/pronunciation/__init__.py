"""Pronounce English words: dictionaries, alphabets, lexicon files, the bundled model."""

from .answer import Pronunciation as Pronunciation
from .answer import Source as Source
from .answer import WordAnswer as WordAnswer
from .arpabet import strip_stress as strip_stress
from .bundled import pack as pack
from .dictionary import BadEntry as BadEntry
from .dictionary import Dictionary as Dictionary
from .dictionary import cmu_dictionary as cmu_dictionary
from .dictionary import read_dictionary as read_dictionary
from .ipa import from_ipa as from_ipa
from .ipa import to_ipa as to_ipa
from .lexicon import write_lexicon as write_lexicon
from .measure import PronunciationMetrics as PronunciationMetrics
from .measure import measure_pronunciation as measure_pronunciation
from .neural import NeuralG2P as NeuralG2P
from .pronouncer import Pronouncer as Pronouncer
from .pronouncer import pronounce as pronounce
from .sentences import ReadToken as ReadToken
from .sentences import SentenceReader as SentenceReader
from .sentences import SpokenWord as SpokenWord
from .sentences import read_pieces as read_pieces
from .sentences import write_ssml as write_ssml
