"""EfficientNet-Lite0 as an ONNX graph, written from its state: convolution, normalization and padding of ONNX."""

import onnxruntime
from onnx import TensorProto, helper, numpy_helper

STRIDED = {"1", "3", "5", "11"}


class Graph:
    """Nodes and constants of a model."""

    def __init__(self, state, eps):
        self.eps, self.nodes = eps, []
        self.constants = [numpy_helper.from_array(value.numpy(), name) for name, value in state.items()]
        self.state = state

    def add(self, kind, *inputs, **options):
        """Add a node and return the name of its output."""
        output = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], **options))
        return output

    def normed(self, x, name, *, stride=1):
        """Add convolution (SAME_UPPER is TensorFlow's "same") and normalization."""
        weight = self.state[f"{name}.weight"]
        groups = weight.shape[0] if name.endswith("depthwise") else 1
        x = self.add("Conv", x, f"{name}.weight", auto_pad="SAME_UPPER", group=groups, strides=[stride, stride])
        norm = [f"{name}.norm.{value}" for value in ("weight", "bias", "mean", "variance")]
        return self.add("BatchNormalization", x, *norm, epsilon=self.eps)

    def relu6(self, x):
        """Add a ReLU that ends at 6."""
        return self.add("Clip", x, "zero", "six")


def lite0_session(state, eps):
    """Return a session with the input "pictures"; its output are the logits."""
    graph = Graph(state, eps)
    for name, value in (("zero", 0.0), ("six", 6.0)):
        graph.constants.append(helper.make_tensor(name, TensorProto.FLOAT, [], [value]))
    x = graph.relu6(graph.normed("pictures", "stem", stride=2))
    for number in map(str, range(16)):
        inputs, block = x, f"blocks.{number}"
        if number != "0":
            x = graph.relu6(graph.normed(x, f"{block}.expand"))
        x = graph.relu6(graph.normed(x, f"{block}.depthwise", stride=2 if number in STRIDED else 1))
        x = graph.normed(x, f"{block}.project")
        if number in {"2", "4", "6", "7", "9", "10", "12", "13", "14"}:
            x = graph.add("Add", x, inputs)
    x = graph.add("Flatten", graph.add("GlobalAveragePool", graph.relu6(graph.normed(x, "head"))))
    graph.add("Gemm", x, "classifier.weight", "classifier.bias", transB=1)
    graph.nodes[-1].output[0] = "logits"
    made = helper.make_graph(
        graph.nodes, "lite0", [helper.make_tensor_value_info("pictures", TensorProto.FLOAT, [None, 3, None, None])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, None)], graph.constants,
    )  # fmt: skip
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
