"""Normalize text: numbers, dates, abbreviations and signs as words, with their places in the text."""

from .rule import SpokenToken as SpokenToken
from .scan import normalize as normalize
from .values.numbers import cardinal as cardinal
from .values.numbers import ordinal as ordinal
from .values.numbers import year as year
