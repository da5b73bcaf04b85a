"""Detection as a CUDA graph: the kernels of one picture shape are recorded once and then launched together.

A detection is some 350 small kernels, and a GPU waits for most of them to be launched. A graph needs the same kernels
each time, so NMS runs a fixed number of rounds, and detections are padded. Rarely the rounds are too few: the graph
says so, and the picture is detected without it.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from qkv.models.detectors.frozen_norm import folded_weights
from qkv.models.regions.nms import fixed_rounds

if TYPE_CHECKING:
    from qkv.models.detectors.base import Detection, Detector, PaddedDetections

MAX_GRAPHS = 8
"""Picture shapes per detector whose graphs are kept, the last used ones."""
NMS_ROUNDS = 12
"""Rounds of each NMS; 5 to 9 do in practice."""


@dataclass
class _DetectionGraph:
    """A recorded detection with its inputs and outputs, which every replay overwrites."""

    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    found: "PaddedDetections"
    counts: Tensor
    """Objects found in each picture; after them, 1 if all rounds of NMS were enough."""
    weights: Hashable
    """State of the weights when the graph was recorded."""
    kept_alive: list[Any]
    """Tensors that the graph reads and that the model may drop."""

    def replay(self, *inputs: Tensor) -> "list[Detection] | None":
        """Return the detections, or None if NMS needs more rounds."""
        for own, given in zip(self.inputs, inputs, strict=True):
            own.copy_(given)
        self.graph.replay()
        *counts, settled = self.counts.tolist()
        if not settled:
            return None
        return type(self.found)(*(x.clone() for x in self.found)).split(counts)


_Graphs = OrderedDict[Hashable, _DetectionGraph | None]
_graphs: WeakKeyDictionary["Detector", _Graphs] = WeakKeyDictionary()


def can_replay(detector: "Detector", pictures: Tensor) -> bool:
    """Return whether a detection of these pictures may be recorded."""
    return (
        pictures.is_cuda
        and detector.can_record_detection
        and not detector.training
        and not torch.is_autocast_enabled("cuda")  # casts of weights are cached outside of the graph
        and not torch.compiler.is_compiling()
        and not torch.cuda.is_current_stream_capturing()
    )


def replay_detection(
    detector: "Detector", pictures: Tensor, extents: Tensor, proposals: Tensor
) -> "list[Detection] | None":
    """Return the detections by a CUDA graph, or None: the shape is new, or NMS needs more rounds."""
    inputs = pictures, extents, proposals
    key = pictures.device, *(x.shape for x in inputs)
    graphs = _graphs.setdefault(detector, OrderedDict())
    if key not in graphs:  # the first detection allocates and chooses algorithms
        graphs[key] = None
        _drop_oldest(graphs)
        return None
    graphs.move_to_end(key)
    weights = _state_of_weights(detector)
    recorded = graphs[key]
    if recorded is None or recorded.weights != weights:
        recorded = graphs[key] = _record(detector, inputs, weights)
    return recorded.replay(*inputs)


def _record(detector: "Detector", inputs: tuple[Tensor, ...], weights: Hashable) -> _DetectionGraph:
    """Record the detection of these inputs."""
    own = tuple(x.clone() for x in inputs)
    pictures, extents, proposals = own
    # on the stream and with the allocations that recording needs
    side = torch.cuda.Stream(pictures.device)
    side.wait_stream(torch.cuda.current_stream(pictures.device))
    with torch.cuda.stream(side), fixed_rounds(NMS_ROUNDS):
        detector.detect_padded(pictures, extents, proposals)
    torch.cuda.current_stream(pictures.device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"), fixed_rounds(NMS_ROUNDS) as settled:
        found = detector.detect_padded(pictures, extents, proposals)
        is_right = torch.stack(settled).all() if settled else torch.ones_like(found.counts[0], dtype=torch.bool)
        counts = torch.cat([found.counts, is_right[None].long()])
    return _DetectionGraph(graph, own, found, counts, weights, folded_weights(detector))


def _state_of_weights(detector: "Detector") -> Hashable:
    """Return what changes when a weight changes or moves."""
    tensors = (*detector.parameters(), *detector.buffers())
    return detector.min_score, tuple((x.data_ptr(), None if x.is_inference() else x._version) for x in tensors)


def _drop_oldest(graphs: _Graphs) -> None:
    while len(graphs) > MAX_GRAPHS:
        graphs.popitem(last=False)
