"""Tasks: data, presets, objective, evaluation and prediction; one file per task."""

from .base import ConfusionMatrix as ConfusionMatrix
from .base import ModelSizes as ModelSizes
from .base import Preset as Preset
from .base import RunSummary as RunSummary
from .base import Sample as Sample
from .base import Task as Task
from .base import register as register
from .base import tasks as tasks
from .classification.classify import ClassifyTask as ClassifyTask
from .classification.digits import DigitsTask as DigitsTask
from .classification.task import ClassificationTask as ClassificationTask
from .classification.xor import XorTask as XorTask
from .detection.task import DetectTask as DetectTask
from .masked import MaskedTask as MaskedTask
from .pairs import PairsTask as PairsTask
from .pairs import Seq2SeqTask as Seq2SeqTask
from .pronounce import PronounceTask as PronounceTask
from .recall import RecallTask as RecallTask
from .seq2seq import Seq2SeqData as Seq2SeqData
from .text import TextTask as TextTask
from .translation.task import TranslateTask as TranslateTask
from .words import WordsTask as WordsTask
