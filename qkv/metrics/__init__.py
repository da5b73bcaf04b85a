"""How good an output is."""

from .error_rate import ErrorRates as ErrorRates
from .error_rate import closest as closest
from .error_rate import edit_distance as edit_distance
from .error_rate import error_rates as error_rates
from .similarity import cosine as cosine
from .similarity import damerau_levenshtein as damerau_levenshtein
from .similarity import jaccard as jaccard
