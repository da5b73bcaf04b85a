"""Records to pictures: SVG that stands alone."""

from .heatmap import Panel as Panel
from .heatmap import heatmaps as heatmaps
