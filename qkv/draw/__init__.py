"""Charts and report pages as self-contained SVG and HTML."""

from .alignment import alignment_panels as alignment_panels
from .bar_chart import Bar as Bar
from .bar_chart import bar_chart as bar_chart
from .boxes import DrawnBox as DrawnBox
from .boxes import DrawnFile as DrawnFile
from .boxes import draw_boxes as draw_boxes
from .boxes import drawings_page as drawings_page
from .heatmap import Panel as Panel
from .heatmap import heatmaps as heatmaps
from .heatmap import rectangular_heatmaps as rectangular_heatmaps
from .line_chart import Axis as Axis
from .line_chart import line_chart as line_chart
from .png import data_uri as data_uri
from .png import encode_png as encode_png
from .report import AlignmentFigure as AlignmentFigure
from .report import TrainingReport as TrainingReport
from .report import report_page as report_page
from .report_answers import ConfusionTable as ConfusionTable
from .report_answers import Example as Example
from .report_answers import Mistakes as Mistakes
from .report_answers import ReportAnswer as ReportAnswer
from .series import Series as Series
from .series import downsample as downsample
from .series import smooth as smooth
from .tree_diagram import TreeNode as TreeNode
from .tree_diagram import tree_diagram as tree_diagram
