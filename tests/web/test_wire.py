import torch

from qkv.web.wire import Response, pack
from tests.web.client import unpack


def test_tensors_and_records_come_back():
    numbers = torch.arange(15, dtype=torch.float64).reshape(3, 5) / 7
    small = torch.arange(7, dtype=torch.uint8)
    record, tensors = unpack(
        pack(Response({"name": "ä\u202e</script>", "count": 3}, {"small": small, "numbers": numbers}))
    )
    assert record == {"name": "ä\u202e</script>", "count": 3}
    assert torch.equal(tensors["small"], small.long())
    assert torch.equal(tensors["numbers"], numbers.float())


def test_a_tensor_view_is_packed_in_its_own_order():
    whole = torch.arange(12.0).reshape(3, 4)
    assert torch.equal(unpack(pack(Response({}, {"turned": whole.T[1:]})))[1]["turned"], whole.T[1:])


def test_nan_and_infinity_become_null():
    record, _ = unpack(pack(Response({"deep": [{"x": float("nan")}, float("inf"), 1.5]})))
    assert record == {"deep": [{"x": None}, None, 1.5]}


def test_an_empty_tensor():
    _, tensors = unpack(pack(Response({}, {"none": torch.zeros(0, 3), "one": torch.ones(1)})))
    assert tensors["none"].shape == (0, 3)
    assert tensors["one"].tolist() == [1.0]
