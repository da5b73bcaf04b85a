"""Worked problems, each solved by a few lines of public calls and compared with a hand-written answer."""

from .catalog import problem as problem
from .catalog import problems as problems
from .detectors import trained_detector as trained_detector
from .expectation import AtLeast as AtLeast
from .expectation import AtMost as AtMost
from .expectation import Between as Between
from .expectation import Near as Near
from .expectation import meets as meets
from .fit import fit as fit
from .markov import MarkovChain as MarkovChain
from .next_token import NextTokenWindows as NextTokenWindows
from .pictures import draw_pictures as draw_pictures
from .record import Problem as Problem
from .record import Solution as Solution
