"""Read sentences: numbers and abbreviations as words, heteronyms by context, a book in bounded memory."""

from .pieces import cut as cut
from .pieces import read_pieces as read_pieces
from .reader import ReadToken as ReadToken
from .reader import SentenceReader as SentenceReader
from .reader import SpokenWord as SpokenWord
from .ssml import write_ssml as write_ssml
