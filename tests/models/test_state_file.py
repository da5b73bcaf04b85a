"""Decoding states as files: what is refused, and why; and that a file is whole or not there."""

import os
import random
import signal
import subprocess
import sys
import time
from hashlib import sha256

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from qkv.attention import Linear, Softmax, kinds
from qkv.errors import QkvError
from qkv.layers import MultiHead
from qkv.models import (
    Decoder,
    DecoderConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    fingerprint,
    load_state,
    save_state,
)
from qkv.models.fast.fused import FusedEncoderDecoder
from qkv.storage.safetensors_header import read_header
from tests.attention.loops import random_qkv
from tests.models.states import advance

TOKENS = 19
SIZES = {"dim": 12, "heads": 2, "hidden_dim": 10, "layers": 2, "max_length": 29}


def decoder(seed=7, **options):
    torch.manual_seed(seed)
    return Decoder(DecoderConfig(**{**SIZES, **options}), TOKENS).eval()


@pytest.fixture
def saved(tmp_path):
    """A model, one of its states, and the file of it."""
    model = decoder()
    with torch.no_grad():
        state = model.start(torch.randint(4, TOKENS, (2, 5)), None)
    save_state(tmp_path / "start.safetensors", model, state)
    return model, state, tmp_path / "start.safetensors"


@pytest.mark.parametrize("kind", list(kinds))
def test_the_state_of_a_mechanism_needs_a_template(kind, tmp_path):
    mechanism, qkv = kinds[kind].example(11).double(), random_qkv(7, 7)
    fresh = mechanism.start(1, 6, 11, 13, key_heads=3, dtype=torch.float64)
    with torch.no_grad():
        _, state = mechanism.step(*(x[:1, :, :5] for x in qkv), fresh)
        save_state(tmp_path / "x", mechanism, state)
        loaded = load_state(tmp_path / "x", mechanism, fresh)
        rest = [x[:1, :, 5:] for x in qkv]
        assert torch.equal(mechanism.step(*rest, loaded)[0], mechanism.step(*rest, state)[0])
    with pytest.raises(TypeError, match=f"template must be given for a {type(mechanism).__name__}: any state of its"):
        load_state(tmp_path / "x", mechanism)


@pytest.mark.parametrize("attention", [*kinds, "softmax(window=40)", "softmax+forget"])
def test_a_long_state_continues_with_the_same_bits(attention, tmp_path):
    """Kernels cut long rows into blocks, which must not depend on where the state lies in memory."""
    model = decoder(dim=64, heads=2, max_length=700, attention=attention, positions="none")
    prompt, tokens = torch.randint(4, TOKENS, (3, 600)), torch.randint(4, TOKENS, (3, 9))
    with torch.inference_mode():
        _, state = advance(model, model.start(prompt, None), tokens)
        save_state(tmp_path / "x", model, state)
        loaded = [load_state(tmp_path / "x", model) for _ in range(2)]
        expected = continued(model, state, tokens)
        assert torch.equal(continued(model, loaded[0], tokens), expected)
    with torch.no_grad():  # each step copies
        assert torch.equal(continued(model, loaded[1], tokens), expected)


def continued(model, state, tokens):
    """The logits of tokens one by one, and then of the same tokens at once."""
    logits, state = advance(model, state, tokens)
    return torch.cat((logits, model.extend(tokens, state)[0]), 1)


def test_a_layer_has_states_too(tmp_path):
    layer, x = MultiHead(12, 3, Linear()).eval(), torch.randn(2, 9, 12)
    with torch.no_grad():
        _, state = layer.step(x[:, :5], layer.start(2))
        save_state(tmp_path / "x", layer, state)
        loaded = load_state(tmp_path / "x", layer, layer.start(1))
        assert torch.equal(layer.step(x[:, 5:], loaded)[0], layer.step(x[:, 5:], state)[0])


def test_a_fingerprint_is_that_of_structure_and_weights():
    models = [
        decoder(),
        decoder(seed=8),
        decoder(positions="none"),
        decoder(attention="softmax(window=3)"),
        decoder().double(),
        *(Linear(scale=scale) for scale in (1.0, 2.0)),
        Softmax(),
    ]
    assert len({fingerprint(model) for model in models}) == len(models)
    assert fingerprint(decoder()) == fingerprint(decoder().train()) == fingerprint(models[0])
    with torch.no_grad():
        models[0].norm.bias[3] += 1e-6
    assert fingerprint(models[0]) != fingerprint(decoder())
    plain = nn.Linear(3, 2)
    content = sha256(b"Linear(in_features=3, out_features=2, bias=True)")
    for name, shape in (("weight", "(2, 3)"), ("bias", "(2,)")):
        content.update(f"{name} torch.float32 {shape}".encode() + getattr(plain, name).detach().numpy().tobytes())
    assert fingerprint(plain) == content.hexdigest()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_bad_input_a_quantized_model_has_no_fingerprint():
    model = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(3, 2)), {nn.Linear}, dtype=torch.qint8)
    with pytest.raises(TypeError, match=r"model has 0\.\S+, a \w+ that has no fingerprint; use the model in floats"):
        fingerprint(model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 8}, "start.safetensors is the state of another model: its weights or sizes differ"),
        ({"dim": 16}, "start.safetensors is the state of another model"),
        ({"layers": 1}, "start.safetensors is the state of another model"),
        ({"attention": "taylor"}, "start.safetensors is the state of another model"),
        ({"attention": "softmax(window=9)"}, "start.safetensors is the state of another model"),
    ],
)
def test_bad_input_a_state_of_another_model(saved, options, message):
    with pytest.raises(QkvError, match=message):
        load_state(saved[2], decoder(**options))


def test_bad_input_a_state_of_another_family(saved):
    config = EncoderDecoderConfig(dim=12, heads=2, hidden_dim=10, encoder_layers=1, decoder_layers=1)
    other = EncoderDecoder(config, TOKENS, TOKENS).eval()
    message = "start.safetensors holds a DecoderState, but the state of this model is a "
    with pytest.raises(QkvError, match=message + "EncoderDecoderState"):
        load_state(saved[2], other)
    fused = FusedEncoderDecoder(other)
    with pytest.raises(QkvError, match=message + "NumpyState"):
        load_state(saved[2], fused)
    with pytest.raises(TypeError, match="state must be a decoding state that can be saved, got a NumpyState"):
        save_state(saved[2], fused, fused.start(torch.tensor([[5, 6]]), None))
    with pytest.raises(TypeError, match="model must decode step by step, but a Linear has no `start`"):
        load_state(saved[2], nn.Linear(3, 2))


def test_bad_input_a_template_with_more_parts(saved):
    model, _, path = saved
    with pytest.raises(QkvError, match="has no 'convolution', which a state like `template` holds"):
        load_state(path, model, decoder(convolution=3).start(torch.ones(1, 2, dtype=torch.long), None))


def test_bad_input_a_truncated_file(saved):
    model, _, path = saved
    data = path.read_bytes()
    for size in (*range(0, len(data), 97), len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(QkvError, match=r"start.safetensors .*damaged|start.safetensors is not JSON"):
            load_state(path, model)


def test_bad_input_a_bit_flipped(saved):
    """In the header and in the data; every flip that is drawn is found."""
    model, _, path = saved
    data, draw = path.read_bytes(), random.Random(7)
    header = 8 + int.from_bytes(data[:8], "little")
    places = [*draw.sample(range(header), 60), *draw.sample(range(header, len(data)), 20)]
    for place in places:
        flipped = bytearray(data)
        flipped[place] ^= 1 << draw.randrange(8)
        path.write_bytes(flipped)
        with pytest.raises(QkvError, match=r"start\.safetensors"):
            load_state(path, model)
    path.write_bytes(data)
    assert load_state(path, model).lengths == [5, 5]


def rewritten(path, **changes):
    """Write the file again with other metadata, and without a checksum of them."""
    from safetensors import safe_open  # noqa: PLC0415 - only here

    with safe_open(path, "pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(tensors, path, {**metadata, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "2"}, "start.safetensors has format 2, but this version of qkv reads up to 1"),
        ({"state": "EncoderDecoderState"}, "start.safetensors is damaged: its checksum is not that of its contents"),
        ({"model": "0"}, "start.safetensors is damaged: its checksum is not that of its contents"),
        ({"sha256": "0"}, "start.safetensors is damaged: its checksum is not that of its contents"),
    ],
)
def test_bad_input_metadata(saved, changes, message):
    rewritten(saved[2], **changes)
    with pytest.raises(QkvError, match=message):
        load_state(saved[2], saved[0])


def test_bad_input_no_state(tmp_path):
    model = decoder()
    save_file({"a": torch.zeros(3)}, tmp_path / "tensors")
    (tmp_path / "text").write_text("a b c d e f g h i j k l m n o p q r s t u v w x y z")
    (tmp_path / "folder").mkdir()
    for name, message in {
        "tensors": "tensors holds tensors, but not the state of a model",
        "text": "text is damaged or not safetensors: it has 51 bytes, too few for its header",
        "folder": "folder is a folder, but a file is expected",
        "txt": "there is no file txt.*; did you mean text?",
        "none/x": "there is no file x, in .*none",
    }.items():
        with pytest.raises(QkvError, match=message.replace("?", r"\?")):
            load_state(tmp_path / name, model)
    with pytest.raises(QkvError, match="cannot save folder"):
        save_state(tmp_path / "folder", model, model.start(torch.ones(1, 2, dtype=torch.long), None))


def test_a_failure_leaves_the_old_file(saved, monkeypatch):
    model, state, path = saved
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(QkvError, match=r"cannot save start.safetensors \(No space left on device\)"):
        save_state(path, model, state.fork(3))
    assert (path.read_bytes(), os.listdir(path.parent)) == (before, [path.name])


PROGRAM = """
import sys, torch
from tests.models.test_state_file import decoder
from qkv.models import load_state, save_state
path, order, threads = sys.argv[1:]
torch.set_num_threads(int(threads))
model = decoder()
if order == "continue":
    from tests.models.states import advance
    with torch.inference_mode():
        logits, _ = advance(model, load_state(path, model), torch.arange(4, 14).view(2, 5))
    sys.stdout.write(logits.numpy().tobytes().hex())
else:
    states = [model.start(torch.full((rows, 5), 7), None) for rows in (500, 700)]
    print("ready", flush=True)
    while True:
        for state in states:
            save_state(path, model, state)
"""


def program(*arguments):
    """A process with as many threads as this one: products of more threads add in another order."""
    return [sys.executable, "-c", PROGRAM, *map(str, arguments), str(torch.get_num_threads())]


def test_another_process_continues_with_the_same_bits(saved):
    model, state, path = saved
    done = subprocess.run(program(path, "continue"), check=True, capture_output=True, text=True)
    with torch.inference_mode():
        logits, _ = advance(model, state, torch.arange(4, 14).view(2, 5))
    assert done.stdout == logits.numpy().tobytes().hex()


@pytest.mark.slow
def test_kill_9_while_saving_leaves_a_whole_file(tmp_path):
    """Two states of different sizes are written in turns."""
    model, draw, path, sizes, left = decoder(), random.Random(7), tmp_path / "x.safetensors", set(), 0
    for _ in range(6):
        with subprocess.Popen(program(path, "save"), stdout=subprocess.PIPE) as process:
            assert process.stdout.readline() == b"ready\n"
            while not path.exists():
                time.sleep(0.001)
            time.sleep(draw.uniform(0, 0.1))
            deadline = time.monotonic() + 5
            while len(os.listdir(tmp_path)) == 1 + left and time.monotonic() < deadline:  # until the next is written
                time.sleep(0.0001)
            process.send_signal(signal.SIGKILL)
        sizes.add(load_state(path, model).rows)
        left = len(os.listdir(tmp_path)) - 1
        assert read_header(path)
    assert sizes <= {500, 700}
    assert left > 0  # some kills hit a file that was being written
