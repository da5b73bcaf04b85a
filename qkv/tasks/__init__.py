"""Tasks: which data, which presets, which metric; one file each."""

from qkv.inference.fill_mask import Filler as Filler
from qkv.inference.fill_mask import Reader as Reader
from qkv.inference.fill_mask import embed as embed
from qkv.inference.word_similarity import Agreement as Agreement
from qkv.inference.word_similarity import Completed as Completed
from qkv.inference.word_similarity import agreement as agreement
from qkv.inference.word_similarity import completed as completed
from qkv.runs.load import Config as Config
from qkv.runs.load import build as build
from qkv.runs.load import configure as configure
from qkv.runs.load import preset as preset
from qkv.runs.load import read_config as read_config
from qkv.runs.load import restore as restore
from qkv.runs.load import write as write

from .base import Task as Task
from .base import ModelSizes as ModelSizes
from .base import Preset as Preset
from .base import tasks as tasks
from .base import register as register
from .classification import ClassificationTask as ClassificationTask
from .digits import DigitsTask as DigitsTask
from .masked import MaskedTask as MaskedTask
from .pairs import PairsTask as PairsTask
from .pairs import Seq2SeqTask as Seq2SeqTask
from .pronounce import PronounceTask as PronounceTask
from .recall import RecallTask as RecallTask
from .seq2seq import Search as Search
from .seq2seq import Strings as Strings
from .seq2seq import answer as answer
from .text import TextTask as TextTask
from .words import WordsTask as WordsTask
from .xor import XorTask as XorTask
