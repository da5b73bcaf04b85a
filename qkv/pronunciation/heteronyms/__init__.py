"""Choose the reading of a heteronym by its context: rules in tables, and a part-of-speech tagger."""

from .choose import Choice as Choice
from .choose import Reading as Reading
from .choose import choose as choose
from .choose import heteronyms as heteronyms
