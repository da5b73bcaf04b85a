"""Predict with a trained model: map sources to targets, generate, fill masks, embed, evaluate vectors, find objects."""

from .detect import FoundObject as FoundObject
from .detect import ObjectFinder as ObjectFinder
from .drawings import DrawingFiles as DrawingFiles
from .fill_mask import FillMaskPredictor as FillMaskPredictor
from .fill_mask import MaskCandidate as MaskCandidate
from .fill_mask import MaskedLM as MaskedLM
from .generate import Continuation as Continuation
from .generate import TextPredictor as TextPredictor
from .generate import generate as generate
from .predictor import AnswerPredictor as AnswerPredictor
from .predictor import PredictOptions as PredictOptions
from .predictor import Predictor as Predictor
from .seq2seq import Search as Search
from .seq2seq import evaluate_pairs as evaluate_pairs
from .seq2seq import predict_targets as predict_targets
from .seq2seq import search_limits as search_limits
from .sliding_window import measure_perplexity as measure_perplexity
from .text_input import TextInput as TextInput
from .text_input import TokenSequence as TokenSequence
from .word_similarity import AnalogyScore as AnalogyScore
from .word_similarity import SimilarityScore as SimilarityScore
from .word_similarity import score_analogies as score_analogies
from .word_similarity import score_similarity as score_similarity
