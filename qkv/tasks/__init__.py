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

from .base import Job as Job
from .base import Outline as Outline
from .base import Preset as Preset
from .base import jobs as jobs
from .base import register as register
from .classification import ClassJob as ClassJob
from .digits import Digits as Digits
from .masked import MaskedJob as MaskedJob
from .pairs import Pairs as Pairs
from .pairs import StringJob as StringJob
from .pronounce import Pronounce as Pronounce
from .recall import RecallJob as RecallJob
from .seq2seq import Search as Search
from .seq2seq import Strings as Strings
from .seq2seq import answer as answer
from .text import TextJob as TextJob
from .words import Words as Words
from .xor import Xor as Xor
