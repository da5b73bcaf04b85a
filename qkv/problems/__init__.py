"""The worked problems: each answered by a few lines of public calls, beside what was written by hand."""

from .catalog import problem as problem
from .catalog import problems as problems
from .expectation import AtLeast as AtLeast
from .expectation import AtMost as AtMost
from .expectation import Between as Between
from .expectation import Near as Near
from .expectation import meets as meets
from .fit import fit as fit
from .markov import Markov as Markov
from .next_token import NextToken as NextToken
from .pictures import draw as draw
from .record import Problem as Problem
from .record import Solution as Solution
