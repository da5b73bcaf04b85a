"""Tasks: which data, which presets, which metric; one file each."""

from .base import Job as Job
from .base import Preset as Preset
from .base import jobs as jobs
from .base import register as register
from .classes import ClassJob as ClassJob
from .digits import Digits as Digits
from .masked import MaskedJob as MaskedJob
from .pairs import Pairs as Pairs
from .pairs import StringJob as StringJob
from .pronounce import Pronounce as Pronounce
from .reader import Filler as Filler
from .reader import Reader as Reader
from .reader import embed as embed
from .recall import RecallJob as RecallJob
from .resolve import Config as Config
from .resolve import build as build
from .resolve import configure as configure
from .resolve import preset as preset
from .resolve import read_config as read_config
from .resolve import restore as restore
from .resolve import write as write
from .strings import Search as Search
from .strings import Strings as Strings
from .strings import answer as answer
from .text import TextJob as TextJob
from .xor import Xor as Xor
