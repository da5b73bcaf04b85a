"""Metrics of predictions."""

from .bias_variance import BiasVariance as BiasVariance
from .bias_variance import NoisySample as NoisySample
from .bias_variance import bias_variance as bias_variance
from .classification import accuracy as accuracy
from .classification import confusion_matrix as confusion_matrix
from .error_rate import ErrorRates as ErrorRates
from .error_rate import closest_reference as closest_reference
from .error_rate import edit_distance as edit_distance
from .error_rate import error_rates as error_rates
from .perplexity import Perplexity as Perplexity
from .perplexity import count_words as count_words
from .rank_correlation import spearman as spearman
from .ranking import PrecisionRecall as PrecisionRecall
from .ranking import average_precision as average_precision
from .ranking import precision_recall as precision_recall
from .ranking import ranked_hits as ranked_hits
from .separability import Separation as Separation
from .separability import separating_hyperplane as separating_hyperplane
from .similarity import cosine as cosine
from .similarity import damerau_levenshtein as damerau_levenshtein
from .similarity import jaccard as jaccard
