"""The pronouncer as a product: dictionaries, alphabets, lexicon files, the bundled model."""

from .answer import Answer as Answer
from .answer import Pronunciation as Pronunciation
from .answer import Source as Source
from .arpabet import strip_stress as strip_stress
from .bundled import pack as pack
from .dictionary import BadLine as BadLine
from .dictionary import Dictionary as Dictionary
from .dictionary import cmu_dictionary as cmu_dictionary
from .dictionary import read_dictionary as read_dictionary
from .ipa import from_ipa as from_ipa
from .ipa import to_ipa as to_ipa
from .lexicon import write_lexicon as write_lexicon
from .measure import Figures as Figures
from .measure import measure as measure
from .neural import Network as Network
from .pronouncer import Pronouncer as Pronouncer
from .pronouncer import pronounce as pronounce
