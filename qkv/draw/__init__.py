"""Records to pictures and pages: SVG and HTML that stand alone."""

from .alignment import alignment_panels as alignment_panels
from .bars import Bar as Bar
from .bars import bars as bars
from .curve import Axis as Axis
from .curve import curves as curves
from .heatmap import Panel as Panel
from .heatmap import heatmaps as heatmaps
from .heatmap import rectangles as rectangles
from .report import Answer as Answer
from .report import Example as Example
from .report import Picture as Picture
from .report import Report as Report
from .report import report as report
from .series import Series as Series
from .series import smooth as smooth
from .series import thin as thin
from .tree import Branch as Branch
from .tree import tree as tree
