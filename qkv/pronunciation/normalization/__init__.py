"""Normalize text: numbers, dates, abbreviations and signs as words, with their places in the text."""

from .numbers import cardinal as cardinal
from .numbers import ordinal as ordinal
from .numbers import year as year
from .rule import SpokenToken as SpokenToken
from .scan import normalize as normalize
