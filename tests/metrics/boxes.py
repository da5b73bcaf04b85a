"""Detections and objects from rows of numbers."""

import numpy as np

from qkv.metrics import Detections, Objects


def objects(*rows, ignored=()):
    """Rows of (class, x1, y1, x2, y2)."""
    table = np.array(rows, dtype=float).reshape(-1, 5)
    marks = np.array([index in ignored for index in range(len(table))], dtype=bool)
    return Objects(table[:, 1:], table[:, 0].astype(int), marks)


def detections(*rows):
    """Rows of (class, score, x1, y1, x2, y2)."""
    table = np.array(rows, dtype=float).reshape(-1, 6)
    return Detections(table[:, 2:], table[:, 0].astype(int), table[:, 1])
