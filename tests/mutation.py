"""Break one line of the library at a time and see that the tests notice: `python -m tests.mutation`.

Each mutant is a copy of the package with one text replaced. A mutant that survives is a hole in the
tests. Every test that caught one must pass on an unbroken copy, so that a kill means something.

Mutants are forks of this process, which has imported torch but not qkv.
"""

import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
# the kernels are interpreted, number by number: only their own mutants pay for that
KERNELS = "tests/attention/triton/test_triton.py"
ATTENTION = (
    *(
        str(path.relative_to(ROOT))
        for folder in ("tests/attention", "tests/attention/internal")
        for path in sorted((ROOT / folder).glob("test_*.py"))
    ),
    *("tests/positions", "tests/layers", "tests/cost/test_record.py", "tests/cost/test_counter.py"),
    "tests/contract",
)
FORWARD = (KERNELS + "::test_outputs_and_gradients",)
DELTA = ("tests/attention/test_delta.py",)
DELTA_KERNELS = "tests/attention/triton/test_delta_kernels.py"
HIDDEN = (DELTA_KERNELS + "::test_hidden_tokens_are_absent_whatever_they_hold",)
DELTA_GATED = (DELTA_KERNELS + "::test_outputs_and_gradients[gated]",)
IN_PLACE = (DELTA_KERNELS + "::test_one_token_at_a_time_in_place[fast gates]",)
EARLY_REFUSAL = "tests/web/rest/test_early_refusal.py"
TRANSFORMERS = "tests/interop/huggingface/test_register.py"
WIDTHS = (KERNELS + "::test_widths_and_groups",)
ONE_TOKEN = (KERNELS + "::test_one_token_at_a_time_in_place",)
FADED = (KERNELS + "::test_fully_faded_weights_leave_finite_outputs",)
CONTRACT = "tests/contract/test_attention.py"
GATES = "tests/attention/test_gates.py"
GATE_KERNELS = "tests/attention/triton/test_gate_kernels.py"
GATED = (GATE_KERNELS + "::test_outputs_and_gradients",)
GATE_SPLITS = (GATE_KERNELS + "::test_a_split_sequence_carries_its_state_and_gradients",)
GATE_WIDTHS = (GATE_KERNELS + "::test_widths_and_groups",)
SEAL = ("tests/runs/test_seal.py",)
STATE = ("tests/attention/test_state.py",)
SUMMARIES = ("tests/attention/parallel/test_summary.py",)
KV_CACHE = ("tests/attention/test_kv_cache.py",)
RECURRENT_STATE = ("tests/attention/test_recurrent_state.py",)
HEADS = ("tests/layers/test_heads.py",)
KV_BUFFER = ("tests/attention/internal/test_kv_buffer.py",)
UNDO_LOG = ("tests/layers/test_undo_log.py",)
NGRAM_DRAFT = ("tests/inference/speculative/test_ngram_draft.py",)
MODEL_DRAFT = ("tests/inference/speculative/test_model_draft.py",)
RULES = ("tests/inference/speculative/test_rules.py",)
SPECULATIVE = ("tests/inference/speculative/test_search.py",)
JOBS = ("tests/inference/jobs/test_batch_job.py",)
JOB_INPUT = ("tests/inference/jobs/test_input_file.py",)
PREFIX_CACHE = ("tests/inference/test_prefix_cache.py",)
DECODER_PADDING = ("tests/models/test_decoder.py::test_padding_of_a_state",)
ROW_ALONE = ("tests/models/test_decoder.py::test_a_row_does_not_depend_on_the_others",)
CROSS_ROW_ALONE = ("tests/models/test_encoder_decoder.py::test_a_row_does_not_depend_on_the_others",)
CROSS_SAVED = ("tests/models/test_encoder_decoder.py::test_blocks_that_share_a_mask_are_saved",)
RECURRENT = ("tests/models/test_recurrent.py",)
STATE_FILE = ("tests/models/test_state_file.py",)
BATCHING = ("tests/inference/batching/test_batcher.py",)
LAYER_GATES = ("tests/layers/test_gates.py",)
SHARDS = tuple(
    f"tests/data/shards/test_{name}.py" for name in ("shard_rows", "piece_tokens", "shard_file", "token_shards")
)
FUSED = tuple(f"tests/models/fast/test_{name}.py" for name in ("fused_decoder", "one_token", "products"))


@dataclass(frozen=True)
class Mutant:
    """One line, broken."""

    file: str
    before: str
    after: str
    tests: tuple[str, ...] = ATTENTION
    """Files of tests, of which one has to notice."""


MUTANTS = (
    # joint n-grams
    Mutant(
        "pronunciation/normalization/values/numbers.py",
        "if group and power:",
        "if power:",
        ("tests/pronunciation/normalization/values/test_numbers.py",),
    ),
    Mutant(
        "pronunciation/heteronyms/choose.py",
        "+ by_class\n",
        "- by_class\n",
        ("tests/pronunciation/heteronyms/test_choose.py",),
    ),
    Mutant(
        "pronunciation/heteronyms/context.py",
        'found.add("perfect-question")',
        'found.add("question")',
        ("tests/pronunciation/heteronyms/test_choose.py",),
    ),
    Mutant(
        "pronunciation/normalization/values/amounts.py",
        r"(?>\d{{1,3}}(?:,\d{{3}})++(?!\d)",
        r"(?:\d{{1,3}}(?:,\d{{3}})++(?!\d)",
        ("tests/pronunciation/normalization/test_scan.py",),
    ),
    Mutant(
        "pronunciation/normalization/values/science.py",
        'minus = ("minus",) if _MINUS.match(text) else ()',
        "minus = ()",
        ("tests/pronunciation/normalization/test_scan.py",),
    ),
    Mutant(
        "pronunciation/normalization/names/roman.py",
        'place > 1 and before is not None and before.kind == "roman"',
        "place > 1 and before is not None",
        ("tests/pronunciation/normalization/test_scan.py",),
    ),
    Mutant(
        "pronunciation/sentences/reader.py",
        "offset += len(piece)",
        "offset += 1",
        ("tests/pronunciation/sentences/test_reader.py::test_a_book_has_places_from_its_beginning",),
    ),
    Mutant(
        "pronunciation/joint_ngram.py",
        "steps += self.back_off[node]",
        "steps += 0 * self.back_off[node]",
        ("tests/pronunciation/test_joint_ngram.py",),
    ),
    Mutant(
        "pronunciation/joint_fit.py",
        "torch.where(one.starts_word, count, torch.bincount",
        "torch.where(one.starts_word & False, count, torch.bincount",
        ("tests/pronunciation/test_joint_ngram.py",),
    ),
    Mutant(
        "pronunciation/alignment.py",
        "backward[i, j] += backward[i + a, j + b] * probability[units]",
        "backward[i, j] += backward[i + a, j + b]",
        ("tests/pronunciation/test_alignment.py",),
    ),
    Mutant(
        "pronunciation/rescore.py",
        ".log_softmax(0) + mass)",
        ".log_softmax(0))",
        ("tests/pronunciation/test_joint_ngram.py",),
    ),
    # scale
    Mutant("attention/softmax.py", "key_dim**-0.5 if self.scale", "key_dim**-1.0 if self.scale"),
    Mutant("attention/softmax.py", "scale=scale,", "scale=None,"),
    Mutant("attention/softmax.py", "if scale <= 0:", "if False:", ("tests/attention/test_softmax.py",)),
    Mutant("attention/taylor.py", "return key_dim**-0.5", "return key_dim**-0.25"),
    Mutant("attention/linear.py", "return key_dim**-0.5", "return 1.0"),
    Mutant("attention/elu.py", "return 1.0", "return key_dim**-0.5"),
    Mutant("attention/delta.py", "return key_dim**-0.5 if", "return 1.0 if", DELTA),
    # the delta rule
    Mutant("attention/internal/delta_rule.py", ".masked_fill(squares == 0, 0)", "", DELTA),
    Mutant("attention/internal/delta_rule.py", "write * (documents == end)", "write", DELTA),
    Mutant("attention/internal/delta_rule.py", ".flip(1) - to_end", ".flip(1)", DELTA),
    Mutant(
        "attention/internal/delta_rule.py", "torch.cat((-corner, second), 2)", "torch.cat((corner, second), 2)", DELTA
    ),
    # gates in layers
    Mutant("layers/gates.py", "upcast(self.log_factor).exp()", "upcast(self.log_factor)", LAYER_GATES),
    Mutant("layers/gates.py", "self.largest * _project", "_project", LAYER_GATES),
    Mutant("layers/gates.py", "steps + torch.log(-torch.expm1(-steps))", "steps", LAYER_GATES),
    Mutant("layers/multi_head.py", 'modifiers | {"starts": packing.starts}', "modifiers", LAYER_GATES),
    Mutant("layers/multi_head.py", "= (out * self.gates.output(x)).to", "= out.to", LAYER_GATES),
    Mutant("models/fast/fused.py", "        and heads.gates is None\n", "", ("tests/models/test_layer_spec.py",)),
    # fused decoders
    Mutant("models/fast/fused_decoder.py", "        and heads.gates is None\n", "", FUSED),
    Mutant("models/fast/fused_decoder.py", " - offsets[:, None]", "", FUSED),
    Mutant("models/fast/fused_decoder.py", "halves.flip(3)", "halves", FUSED),
    Mutant("models/fast/one_token.py", "keys, past, alpha=-1", "keys, past", FUSED),
    Mutant(
        "models/fast/one_token.py",
        "state.keys, state.values, mask, scale",
        "state.keys, state.values, None, scale",
        FUSED,
    ),
    Mutant("models/fast/products.py", "torch.tensor(ZERO + 0.5)", "torch.tensor(float(ZERO))", FUSED),
    Mutant("attention/triton/dispatch.py", "beta = beta.masked_fill(hidden, 0)", "pass", HIDDEN),
    Mutant("attention/triton/kernels/delta_grad.py", "later - earlier - kept", "later - kept", DELTA_GATED),
    Mutant("attention/triton/kernels/delta_step.py", "state *= tl.exp(-", "state *= tl.exp(0 * ", IN_PLACE),
    # the weight itself
    Mutant("attention/taylor.py", "x, total, value=1 / n", "x, total, value=1.0"),
    Mutant("attention/taylor.py", "x * r**-0.5", "x * r**-1.0"),
    Mutant("attention/taylor.py", "constant if m[-1] == key_dim", "constant if m[-1] == key_dim - 1"),
    Mutant("attention/elu.py", "x.relu() + ", "2 * x.relu() + "),
    Mutant("attention/elu.py", "x.relu() + ", "x.clamp(min=0) + ", ("tests/attention/test_elu.py",)),
    Mutant("attention/additive.py", "torch.tanh(query[", "torch.sigmoid(query["),
    # somebody else's models
    Mutant(
        "interop/huggingface/mask.py",
        "[:, -keys:][:, :seen]",
        "[:, -keys:]",
        (TRANSFORMERS + "::test_a_cache_with_room_for_more",),
    ),
    Mutant(
        "interop/huggingface/attention.py",
        "own * scaling / usual",
        "own * scaling",
        (TRANSFORMERS + "::test_the_scale_of_the_model_is_kept",),
    ),
    Mutant(
        "interop/huggingface/attention.py",
        "again & mask[:, 1:] & mask[:, :-1]",
        "again",
        (TRANSFORMERS + "::test_padding_changes_nothing",),
    ),
    Mutant(
        "interop/huggingface/register.py",
        "<= 0.02 * size",
        "<= 20 * size",
        (TRANSFORMERS + "::test_another_kind_than_the_one_that_was_saved",),
    ),
    Mutant("interop/gpt2.py", 'theirs["ln_f.bias"] * last', 'theirs["ln_f.bias"]', ("tests/interop/test_gpt2.py",)),
    Mutant(
        "interop/bert.py",
        '"attention.key": "attention.self.key"',
        '"attention.key": "attention.self.query"',
        ("tests/interop/test_bert.py",),
    ),
    # masks
    Mutant("attention/internal/masking.py", "seen = key <= position", "seen = key <= position + 1"),
    Mutant("attention/internal/masking.py", "seen &= key > position - window", "seen &= key >= position - window"),
    Mutant("attention/internal/masking.py", "x if mask is None else x.masked_fill(hidden_keys(mask), 0)", "x"),
    Mutant("attention/internal/masking.py", "k.masked_fill(hidden, 0), v", "k, v"),
    Mutant("attention/internal/masking.py", "v.masked_fill(hidden, 0)", "v"),
    Mutant("attention/internal/masking.py", "pairs if seen is None else seen & pairs", "pairs"),
    Mutant("attention/scored.py", ".softmax(-1).masked_fill(hidden, 0)", ".softmax(-1)"),
    Mutant(
        "attention/scored.py",
        "score_mask.bias != -torch.inf",
        "score_mask.bias > -torch.inf",
        ("tests/attention/internal/test_validation.py",),
    ),
    Mutant("attention/softmax.py", "bias if seen is None else bias.masked_fill(~seen, -torch.inf)", "bias"),
    Mutant("attention/internal/key_sums.py", "self.features(keys).masked_fill(hidden, 0)", "self.features(keys)"),
    Mutant("attention/feature_map.py", ".transpose(1, 2)[:, None], 0)", ".transpose(1, 2)[:, None], 1)"),
    Mutant("attention/feature_map.py", "group, time, time).tril()", "group, time, time).tril(-1)"),
    # normalizer
    Mutant(
        "attention/internal/masking.py",
        "denominator.masked_fill(denominator.abs() < MIN_WEIGHT_SUM, torch.inf)",
        "denominator",
    ),
    Mutant("attention/internal/key_sums.py", "sums[1] + features.sum(1)", "features.sum(1)"),
    Mutant("attention/feature_map.py", "weights.sum(-1, keepdim=True) + row_product", "row_product"),
    # results that are not finite
    Mutant(
        "attention/internal/nonfinite.py",
        "return isfinite(x.detach().sum().item())",
        "return True",
        ("tests/attention/internal/test_nonfinite.py",),
    ),
    Mutant("attention/internal/nonfinite.py", "(~finite).cumsum(-2) > 0", "(~finite).cumsum(-2) >= 0"),
    # decoding states as values
    Mutant("attention/state.py", "(zeros, x) if first else (x, zeros)", "(x, zeros) if first else (zeros, x)", STATE),
    Mutant("attention/state.py", "return upcast_dtype(dtype) if own in SUMS else dtype", "return dtype", STATE),
    Mutant("attention/state.py", " or own in FIXED", "", STATE),
    Mutant("attention/state.py", ".repeat_interleave(copies)", ".repeat(copies)", STATE),
    Mutant("attention/state.py", ", copy=True)", ")", STATE),
    Mutant("attention/state.py", "(0 if own is None else own.cpu())", "0", STATE),
    Mutant("attention/state.py", "kept = mask.any(0)", "kept = mask.all(0)", STATE),
    Mutant("attention/state.py", "if least or not most else self", "if least else self", DECODER_PADDING),
    Mutant("attention/kv_cache.py", "if bool(self._visible()[:, :start].any()):", "if False:", KV_CACHE),
    Mutant("attention/kv_cache.py", " or state.addressable_keys < widest", "", KV_CACHE),
    Mutant("attention/kv_cache.py", "state.adopt_dtype(example.keys, example.values)", "pass", KV_CACHE),
    Mutant("attention/kv_cache.py", "cache.decay_sums = _join_optional", "_join_optional", KV_CACHE),
    Mutant("attention/kv_cache.py", "cache.documents = _join_optional", "_join_optional", KV_CACHE),
    Mutant("attention/kv_cache.py", "PLACE_AXES[name], start, kept)", "PLACE_AXES[name], 0, kept)", KV_CACHE),
    Mutant("attention/kv_cache.py", " or buffer.shared", "", KV_CACHE),
    Mutant("attention/kv_cache.py", "self._consumed or self._is_view or buffer", "self._is_view or buffer", KV_CACHE),
    Mutant("attention/kv_cache.py", "self._buffer is None or self._is_view or", "self._buffer is None or", KV_CACHE),
    Mutant("attention/kv_cache.py", "return 0 if self._has_dropped else self.length", "return self.length", KV_CACHE),
    Mutant("attention/kv_cache.py", "buffer.rewind(self._end - count)", "pass", KV_CACHE),
    Mutant("attention/internal/kv_buffer.py", "min(self._rewinds[era:])", "min(self._rewinds)", KV_BUFFER),
    Mutant("attention/state.py", "if not 0 <= count <= self.rewindable", "if count > self.rewindable", KV_CACHE),
    Mutant("layers/undo_log.py", "return x[:, :, :tokens, :keys]", "return x[:, :, :tokens]", UNDO_LOG),
    Mutant("layers/undo_log.py", "self.new[:, :tokens]", "self.new", UNDO_LOG),
    Mutant("layers/heads.py", "convolution = self.log.convolved.state_after(left)", "pass", UNDO_LOG),
    Mutant("layers/multi_head.py", "is not None and following.needs_log", "is not None", UNDO_LOG),
    Mutant("inference/speculative/ngram_draft.py", "range(min(self.n, len(ids)), 0, -1)", "(1,)", NGRAM_DRAFT),
    Mutant("inference/speculative/model_draft.py", "self._longest - len(ids) + 1", "self._longest", MODEL_DRAFT),
    Mutant(
        "inference/speculative/model_draft.py",
        "max((length for length in self._kept if",
        "0 * max((length for length in self._kept if",
        MODEL_DRAFT,
    ),
    Mutant("inference/speculative/rules.py", ">= float(p[token])", "> 1", RULES),
    Mutant("inference/speculative/rules.py", "rest = (p - q).clamp(min=0)", "rest = p", RULES),
    Mutant("inference/speculative/rules.py", "zeros_like(p).index_fill", "ones_like(p).index_fill", RULES),
    Mutant("inference/speculative/search.py", ".until(self.limits.end)", "", SPECULATIVE),
    Mutant("inference/speculative/search.py", "limits.max_length - position - 1", "limits.max_length", SPECULATIVE),
    Mutant("inference/speculative/search.py", "min(count, self.longest - len(self.ids))", "count", SPECULATIVE),
    Mutant("inference/jobs/input_file.py", "(-lines - 1) % part_lines", "part_lines - 1", JOB_INPUT),
    Mutant("inference/jobs/batch_job.py", "[line.number - 1 for line in asked]", "[*range(len(asked))]", JOBS),
    Mutant("inference/jobs/job_folder.py", "again is None or again.sha256 != index.sha256", "again is None", JOBS),
    Mutant("inference/jobs/job_folder.py", " if self.part(piece).name in parts", "", JOBS),
    Mutant("inference/prefix_cache.py", "keep={len(path) - 1, len(blocks)}", "keep={len(blocks)}", PREFIX_CACHE),
    Mutant("inference/prefix_cache.py", "keep={len(path) - 1, len(blocks)}", "keep={len(path) - 1}", PREFIX_CACHE),
    Mutant("inference/prefix_cache.py", ".settled()", "", PREFIX_CACHE),
    Mutant("inference/prefix_cache.py", "self._recent.move_to_end((node, False))", "pass", PREFIX_CACHE),
    Mutant("inference/prefix_cache.py", "len(self.key) + _bytes(self.parts)", "_bytes(self.parts)", PREFIX_CACHE),
    Mutant(
        "attention/recurrent_state.py",
        'rows."""\n        self.require_unconsumed()',
        'rows."""',
        RECURRENT_STATE,
    ),
    Mutant("attention/recurrent_state.py", "[x.clone() for x in self.sums]", "self.sums", RECURRENT_STATE),
    Mutant("attention/recurrent_state.py", "max(state.length for state in states)", "self.length", ROW_ALONE),
    Mutant("layers/heads.py", "offsets = offsets - count", "pass", HEADS),
    Mutant("layers/heads.py", 'join_rows("convolution", held) if held', "self.convolution if held", HEADS),
    Mutant("layers/heads.py", "[pad_front(context.v, 2, widest)", "[pad_end(context.v, 2, widest)", HEADS),
    Mutant(
        "layers/multi_head.py",
        "self._split_and_rotate(projections, own_index)",
        "self._split_and_rotate(projections, index)",
        HEADS,
    ),
    Mutant("models/decoder.py", "index = index - padding[:, None]", "pass", ROW_ALONE),
    Mutant(
        "models/encoder_decoder.py", "index if padding is None else index - padding[:, None]", "index", CROSS_ROW_ALONE
    ),
    Mutant(
        "models/recurrent.py",
        "[pad_end(x, 1, widest) for x in visible]",
        "[pad_end(x, 1, widest) | True for x in visible]",
        RECURRENT,
    ),
    Mutant("models/recurrent.py", "length=self.length - count, padding", "padding", RECURRENT),
    Mutant("models/state_file.py", 'if metadata["model"] != fingerprint(model):', "if False:", STATE_FILE),
    Mutant("models/state_file.py", "if checksum != _checksum(metadata, tensors):", "if False:", STATE_FILE),
    Mutant("models/state_file.py", "sha256(json.dumps(metadata, sort_keys=True).encode())", "sha256()", STATE_FILE),
    Mutant("models/state_file.py", "write_atomic(Path(path), ", "Path(path).write_bytes(", STATE_FILE),
    Mutant("models/state_file.py", ".contiguous().clone()", ".contiguous()", CROSS_SAVED),
    # chunk offsets and the state between them
    Mutant(
        "attention/internal/key_sums.py",
        "sums[0] + torch.bmm(features",
        "0 * sums[0] + torch.bmm(features",
    ),
    Mutant(
        "attention/internal/chunked.py",
        "outputs[..., start:end, :] = output",
        "outputs[..., : end - start, :] = output",
    ),
    Mutant(
        "attention/internal/chunked.py",
        "carry_gradient = tuple(found[1])",
        "carry_gradient = tuple(0 * x for x in found[1])",
    ),
    Mutant("attention/internal/chunked.py", "total.add_(part)", "total.copy_(part)"),
    Mutant(
        "attention/internal/chunked.py",
        " or torch._C._are_functorch_transforms_active()",
        "",
        ("tests/attention/internal/test_chunked.py",),
    ),
    Mutant(
        "attention/internal/double_backward.py",
        "if torch.is_grad_enabled():",
        "if False:",
        ("tests/attention/internal/test_chunked.py",),
    ),
    Mutant(
        "attention/softmax.py", "(past + start - self.window + 1, 0), past", "(past + start - self.window + 2, 0), past"
    ),
    Mutant(
        "attention/recurrent_state.py", "[x[rows] for x in self.sums]", "[x[rows.sort().values] for x in self.sums]"
    ),
    Mutant("attention/kv_cache.py", "torch.cat((past, new), 1)", "torch.cat((new, past), 1)"),
    Mutant("attention/kv_cache.py", "slice(self._end - self.addressable_keys, end)", "slice(0, end)"),
    Mutant("attention/kv_cache.py", "self._consumed = True\n        return following", "return following"),
    Mutant(
        "attention/kv_cache.py", "if self.addressable_keys == 0:", "if False:", ("tests/attention/test_kv_cache.py",)
    ),
    Mutant("attention/kv_cache.py", "KVCache(self.keys[rows],", "KVCache(self.keys[rows.sort().values],"),
    # summaries of parts
    Mutant("attention/internal/key_sums.py", "tuple(x * fade for x in sums)", "sums", SUMMARIES),
    Mutant("attention/internal/key_sums.py", "features * rest[0].flatten(0, 1)", "features", SUMMARIES),
    Mutant("attention/internal/chunk_decay.py", "state.masked_fill(last > 0, -torch.inf)", "state", SUMMARIES),
    Mutant("attention/internal/chunk_decay.py", "key.masked_fill(index != last, -torch.inf)", "key", SUMMARIES),
    Mutant("attention/delta.py", '["carried"] @ found', '["carried"].mT @ found', SUMMARIES),
    Mutant(
        "attention/kv_cache.py", "total = _continue(total, zeros)", "total = torch.cat((total, zeros), -1)", SUMMARIES
    ),
    Mutant("attention/scored.py", "decay, starts).trim(self.window)", "decay, starts)", SUMMARIES),
    # decay
    Mutant("attention/internal/chunk_decay.py", "(time - age)[:, None]", "(time - age + 1)[:, None]"),
    Mutant(
        "attention/internal/validation.py",
        "all(rate >= 0",
        "all(rate == rate",
        ("tests/attention/internal/test_validation.py",),
    ),
    Mutant("attention/internal/chunk_decay.py", "torch.exp(-rate * time)", "torch.exp(-rate * (time - 1))"),
    Mutant(
        "attention/internal/layout.py", "return torch.exp(-rate * distance)", "return torch.exp(-rate * 2 * distance)"
    ),
    # gates and documents
    Mutant(
        "attention/internal/gates.py", "decay.masked_fill(hidden if", "decay.masked_fill(hidden & False if", (GATES,)
    ),
    Mutant("attention/internal/gates.py", ".clamp(max=CLOSED)", "", (GATES,)),
    Mutant("attention/internal/gates.py", "else torch.float64", "else torch.float32", (GATES,)),
    Mutant("attention/internal/chunk_decay.py", "index > 0, index != last", "index > 1, index != last", (GATES,)),
    Mutant(
        "attention/internal/chunk_decay.py",
        "(sums - end).clamp(max=0), -end",
        "(sums - end).clamp(max=0), -0.5 * end",
        (GATES,),
    ),
    Mutant("attention/internal/chunk_decay.py", "split = sums[:, first - 1 : first]", "split = sums[:, :1]", (GATES,)),
    Mutant("attention/internal/masking.py", "seen = same if seen is None else seen & same", "seen = same", (GATES,)),
    Mutant("attention/kv_cache.py", "torch.cat((past, last + new), -1)", "torch.cat((past, new), -1)", (GATES,)),
    Mutant("attention/internal/gate_channels.py", "(rounded, one, rest, one)", "(rounded, one, -rest, one)", (GATES,)),
    Mutant("attention/internal/validation.py", "(x >= 0) & (x <= largest)", "(x <= largest)", (GATES,)),
    Mutant("attention/triton/dispatch.py", "modifiers is not None and modifiers.channel_gated", "False", (GATES,)),
    # heads and precision
    Mutant(
        "attention/base.py", "x.repeat_interleave(heads // x.shape[1], dim=1)", "x.repeat(1, heads // x.shape[1], 1, 1)"
    ),
    Mutant(
        "attention/internal/precision.py", "return x.float() if upcast_dtype(x.dtype) != x.dtype else x", "return x"
    ),
    Mutant(
        "attention/internal/precision.py",
        "torch.autocast(device_type, enabled=False) if active",
        "nullcontext() if active",
        ("tests/attention/test_softmax.py", "tests/attention/internal/test_chunked.py"),
    ),
    # positions
    Mutant("positions/rope.py", "left * cosine - right * sine", "left * cosine + right * sine"),
    Mutant("positions/alibi.py", "_powers_of_two(-step / 2, step", "_powers_of_two(-step, step"),
    Mutant(
        "positions/base.py",
        "if index.shape not in (x.shape[-2:-1], (x.shape[0], x.shape[-2])):",
        "if False:",
        ("tests/positions/test_base.py",),
    ),
    Mutant("positions/t5.py", "side = (offset > 0) * buckets", "side = (offset >= 0) * buckets"),
    Mutant("positions/shaw.py", "key_index - query_index[:, None]", "query_index[:, None] - key_index"),
    Mutant("positions/sinusoidal.py", "(angle.sin(), angle.cos())", "(angle.cos(), angle.sin())"),
    # layers
    Mutant(
        "layers/multi_head.py",
        "index = torch.arange(past.length, end,",
        "index = torch.arange(past.length + 1, end + 1,",
    ),
    Mutant(
        "layers/multi_head.py",
        "torch.arange(past.length - past.addressable_keys, end,",
        "torch.arange(past.addressable_keys + end - past.length,",
    ),
    Mutant("layers/convolution.py", "seen[:, x.shape[1] :]", "seen[:, : self.width - 1]"),
    Mutant(
        "layers/residual.py", "return self.norm(x + self.dropout(layer(x)))", "return self.norm(self.dropout(layer(x)))"
    ),
    Mutant("layers/residual.py", "x + self.scale * layer(x)", "x + layer(x)", ("tests/layers/test_dense.py",)),
    # costs
    Mutant("cost/record.py", "ramp * (ramp + 1) // 2", "ramp * ramp // 2"),
    Mutant(
        "profile/timing/rates.py",
        "2 * operation.elements * 4",
        "operation.bytes",
        ("tests/profile/timing/test_rates.py",),
    ),
    Mutant("profile/timing/rates.py", " + bound * self.binding", "", ("tests/profile/timing/test_rates.py",)),
    Mutant("profile/timing/fit.py", "bool((found >= 0).all()) and ", "", ("tests/profile/timing/test_fit.py",)),
    Mutant(
        "profile/timing/time_crossover.py",
        "low = behind[-1]",
        "low = behind[0]",
        ("tests/profile/timing/test_time_crossover.py",),
    ),
    Mutant(
        "attention/internal/cost/feature_cost.py",
        "whole * chunk**2 + rest**2",
        "whole * chunk**2",
    ),
    # data and randomness
    Mutant("random.py", "(indices + 1)", "indices", ("tests/test_random.py",)),
    Mutant("data/corpora/recall.py", "** (self.power - 1)", "** self.power", ("tests/data/corpora/test_recall.py",)),
    Mutant("models/regions/roi.py", "[1 - share, share]", "[share, 1 - share]", ("tests/models/regions/test_roi.py",)),
    Mutant("data/buckets.py", "POOL_BATCHES * self.batch_size", "POOL_BATCHES", ("tests/data/test_buckets.py",)),
    Mutant(
        "data/sampling/word_counts.py",
        "(ratio.sqrt() + ratio)",
        "ratio.sqrt()",
        ("tests/data/sampling/test_word_counts.py",),
    ),
    Mutant(
        "data/sampling/skipgram.py", "(distance > 0) &", "(distance >= 0) &", ("tests/data/sampling/test_skipgram.py",)
    ),
    Mutant(
        "data/sampling/vectors.py", "normalize(b - a + c", "normalize(b + c", ("tests/data/sampling/test_vectors.py",)
    ),
    Mutant("storage/folder.py", "if size != self.bytes:", "if False:", ("tests/storage/test_folder.py",)),
    Mutant(
        "storage/folder.py", "hexdigest() != self.sha256:", "hexdigest() == None:", ("tests/storage/test_folder.py",)
    ),
    Mutant("storage/seal.py", "    if name in listed:", "    if False:", ("tests/storage/test_seal.py",)),
    Mutant("runs/files.py", '"config.json") > 1:', '"config.json") > 9:', SEAL),
    Mutant("train/checkpoint.py", "bool(value.isnan().any())", "False", SEAL),
    Mutant("train/resume_check.py", 'before.get("run", now["run"])', 'now["run"]', SEAL),
    Mutant("data/files/token_file.py", "== block.sha256", "!= None", ("tests/data/files/test_token_file.py",)),
    Mutant("storage/package_data.py", "if digest != sha256:", "if False:", ("tests/storage/test_package_data.py",)),
    # text
    Mutant(
        "layers/packing.py", "all_starts[:, :1] = True", "all_starts[:, :1] |= False", ("tests/layers/test_packing.py",)
    ),
    Mutant("layers/packing.py", "(index >= first) & ", "", ("tests/layers/test_packing.py",)),
    Mutant("layers/multi_head.py", "if relative and isinstance", "if isinstance", ("tests/layers/test_packing.py",)),
    Mutant(
        "attention/scored.py",
        "ScoreMask(windowed, self.window, mask, bias)",
        "ScoreMask(False, None, mask, bias)",
        ("tests/layers/test_packing.py",),
    ),
    Mutant(
        "data/files/token_rows.py",
        "clamp(max=block.end - length - 1)",
        "clamp(max=block.end - length)",
        ("tests/data/files/test_token_file.py",),
    ),
    Mutant("random.py", "(found >= count)", "(found > count)", ("tests/test_random.py",)),
    Mutant("data/shards/shard_rows.py", "* self.block + places % self.block", "* self.block", SHARDS),
    Mutant("data/shards/shard_rows.py", '"first row of an epoch", epoch)', '"first row of an epoch", 0)', SHARDS),
    Mutant("data/shards/piece_tokens.py", "ids = tokens[cut:]", "ids = tokens", SHARDS),
    Mutant("data/shards/shard_file.py", "if not self._verified[chunk]:", "if self._verified[chunk]:", SHARDS),
    Mutant(
        "data/shards/token_shards.py", "bisect_right(self._ends, first)", "bisect_right(self._ends, first + 1)", SHARDS
    ),
    Mutant(
        "data/tokenizer.py",
        "self._backend.encode_special_tokens = True",
        "self._backend.encode_special_tokens = False",
        ("tests/data/test_tokenizer.py",),
    ),
    Mutant(
        "inference/sliding_window.py",
        "[IGNORE_INDEX] * (done - begin) + ids[done + 1 : end + 1]",
        "ids[begin + 1 : end + 1]",
        ("tests/tasks/test_text.py",),
    ),
    Mutant("tasks/text.py", "[target_ids == tokenizer.start]", "[target_ids == -1]", ("tests/tasks/test_text.py",)),
    Mutant("metrics/perplexity.py", ' + text.count("\\n")', "", ("tests/metrics/test_perplexity.py",)),
    # decoding
    Mutant("decode/beam.py", "[row + parent for parent in", "[parent for parent in", ("tests/decode/test_beam.py",)),
    Mutant(
        "decode/stepper.py",
        ".index_fill(-1, forbidden, -torch.inf)",
        ".clone()",
        ("tests/decode/test_stepper.py", "tests/decode/test_greedy.py"),
    ),
    Mutant("decode/sample.py", "right=True", "right=False", ("tests/decode/test_sample.py",)),
    Mutant(
        "inference/thread_pool.py",
        "for future in track(futures)][::-1]",
        "for future in track(futures)]",
        ("tests/inference/test_thread_pool.py",),
    ),
    Mutant("inference/thread_pool.py", "cancel_futures=True", "", ("tests/inference/test_thread_pool.py",)),
    # continuous batching
    Mutant("inference/batching/row_group.py", "if self._state.length >= self.places:", "if False:", BATCHING),
    Mutant(
        "inference/batching/prefill.py", "(len(rows) + 1) * longest > self._piece", "longest > self._piece", BATCHING
    ),
    Mutant("inference/batching/prefill.py", "and (left >= size or left == self._piece)", "", BATCHING),
    Mutant("inference/batching/prefill.py", "return awaited is not None", "return False", BATCHING),
    Mutant("inference/batching/batcher.py", "rows < self.limits.max_rows", "rows <= self.limits.max_rows", BATCHING),
    Mutant("inference/batching/choose_tokens.py", "set(places) - set(broken)", "set(places)", BATCHING),
    Mutant(
        "inference/batching/choose_tokens.py",
        "positions = [row.position for row in rows]",
        "positions = [rows[0].position for row in rows]",
        BATCHING,
    ),
    Mutant(
        "attention/state.py",
        "    written[rows] = joined[held:]\n",
        "",
        ("tests/inference/batching/test_row_group.py",),
    ),
    # models
    Mutant(
        "models/word_vectors.py",
        "hit.neg().sigmoid_().mul_(real)",
        "hit.sigmoid_().mul_(real)",
        ("tests/models/test_word_vectors.py",),
    ),
    Mutant(
        "models/word_vectors.py",
        "pairs.clamp(min=1).reciprocal_()",
        "pairs.clamp(min=1)",
        ("tests/models/test_word_vectors.py",),
    ),
    # metrics
    Mutant(
        "metrics/rank_correlation.py", "(start + 1 + end) / 2", "start + 1", ("tests/metrics/test_rank_correlation.py",)
    ),
    Mutant("metrics/error_rate.py", "grows << 1 | 1", "grows << 1", ("tests/metrics/test_error_rate.py",)),
    # training
    Mutant("train/settings.py", "0.5 * (1 + math.cos(", "0.5 * (1 - math.cos(", ("tests/train/test_settings.py",)),
    Mutant(
        "train/loop.py",
        "if math.isfinite(loss) and math.isfinite(norm):",
        "if math.isfinite(loss):",
        ("tests/train/test_loop.py",),
    ),
    Mutant(
        "train/settings.py",
        "rate * (1 - _decay_fraction(",
        "rate * (0 + _decay_fraction(",
        ("tests/train/test_settings.py",),
    ),
    Mutant("train/optimizer.py", "if max_norm < norm <", "if 1e9 < norm <", ("tests/train/test_optimizer.py",)),
    Mutant("train/optimizer.py", "if p.dim() > 1]", "if p.dim() > 2]", ("tests/train/test_loop.py",)),
    Mutant(
        "train/run.py",
        "fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "pass",
        ("tests/cli/modeling/test_train_start.py",),
    ),
    Mutant(
        "train/run.py",
        "os.fsync(file.fileno())  # metrics",
        "file.fileno()  # metrics",
        ("tests/train/test_run.py",),
    ),
    Mutant("train/loop.py", 'self._seed("validation", self.progress.step)', "pass", ("tests/train/test_resume.py",)),
    Mutant("compare/trial.py", "score == min(scores)]", "score == max(scores)]", ("tests/compare/test_trial.py",)),
    # kernels
    Mutant("attention/triton/kernels/common.py", "w = tl.where(distance >= 0", "w = tl.where(distance > 0", FORWARD),
    Mutant(
        "attention/triton/kernels/common.py",
        "distance = tokens - segment * SEGMENT + 1",
        "distance = tokens - segment * SEGMENT",
        FORWARD,
    ),
    Mutant("attention/triton/kernels/grad_qk.py", "d_weight * KIND.slope(product, scales.score)", "d_weight", FORWARD),
    Mutant("attention/triton/kernels/chunk_state.py", "d_decay += tokens * total", "d_decay += total", FORWARD),
    Mutant(
        "attention/triton/kernels/chunk_state.py",
        "| (block == blocks - 1)",
        "",
        (KERNELS + "::test_splits_of_several_segments",),
    ),
    Mutant("attention/triton/kernels/taylor.py", "halves = [0.5**0.5 if", "halves = [1.0 if", FORWARD),
    Mutant("attention/triton/kernels/linear.py", "return gradient * inner * scale", "return gradient * inner", WIDTHS),
    Mutant("attention/triton/kernels/grad_qk.py", "d_norm = -inv_norm * _dot", "d_norm = inv_norm * _dot", FORWARD),
    Mutant(
        "attention/triton/kernels/grad_qk.py",
        "before_fade, features + TILES.BLOCK_F,",
        "before_fade, features,",
        WIDTHS,
    ),
    Mutant(
        "attention/triton/launch_cache.py", "x.data_ptr() & 15", "0", ("tests/attention/triton/test_launch_cache.py",)
    ),
    Mutant(
        "attention/triton/kernels/decode_step.py",
        "kv_sum = old_kv * fade +",
        "kv_sum = old_kv +",
        ONE_TOKEN,
    ),
    Mutant("attention/triton/kernels/decode_step.py", "for part in range(PARTS):", "for part in range(1):", ONE_TOKEN),
    Mutant("attention/triton/kernels/common.py", "~(norm < MIN_NORM)", "(norm != 0.0)", FADED),
    Mutant("attention/internal/masking.py", "denominator.abs() < MIN_WEIGHT_SUM", "denominator == 0", FADED),
    Mutant(
        "attention/triton/op.py",
        "empty_like_rows(q), empty_like_rows(k), empty_like_rows(v)",
        "torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)",
        (KERNELS + "::test_overlapping_or_transposed_inputs",),
    ),
    Mutant(
        "attention/triton/kernels/chunk_state.py", "total *= tl.load(split_fades", "tl.load(split_fades", GATE_SPLITS
    ),
    Mutant("attention/triton/kernels/gate.py", "tl.cumsum(lost, 1) - lost", "tl.cumsum(lost, 1)", GATED),
    Mutant("attention/triton/kernels/gate.py", "tl.where(end <= WEAK, tl.exp2", "tl.where(end < 0, tl.exp2", GATED),
    Mutant("attention/triton/kernels/output.py", "crossing *= tl.exp2(early", "crossing *= tl.exp2(0 * early", GATED),
    Mutant("attention/triton/gate.py", "if not forward.before_splits:", "if True:", GATE_SPLITS),
    Mutant("attention/triton/kernels/grad_qk.py", "d_decay += 0.5 * tl.sum(raw", "d_decay += tl.sum(raw", GATE_WIDTHS),
    Mutant("attention/triton/kernels/output.py", "norm *= fade\n                out", "out", GATED),
    Mutant(
        "attention/triton/plan.py",
        "length - start if reverse else",
        "",
        (KERNELS + "::test_every_product_is_counted",),
    ),
    Mutant(
        "attention/contract/identities.py",
        "torch.stack([x.abs().max() for x in tensors]).max()",
        "max(x.abs().max() for x in tensors)",
        (CONTRACT + "::test_distance_is_inf_wherever_a_nan_is",),
    ),
    Mutant(
        "tasks/synthetic/recall.py", "// settings.batch_size % len", "% len", ("tests/tasks/synthetic/test_recall.py",)
    ),
    # text
    Mutant("models/encoder.py", "torch.tanh(self.pool(first))", "self.pool(first)", ("tests/models/test_encoder.py",)),
    Mutant(
        "data/sampling/mlm.py",
        "MASK_FRACTION, RANDOM_FRACTION = 0.8, 0.1",
        "MASK_FRACTION, RANDOM_FRACTION = 0.9, 0.05",
        ("tests/data/sampling/test_mlm.py",),
    ),
    Mutant(
        "data/sampling/sentence_pairs.py",
        "where(found < start",
        "where(found <= start",
        ("tests/data/sampling/test_sentence_pairs.py",),
    ),
    Mutant(
        "tasks/masked.py",
        "* batch.masked_positions.sum(1)).sum()",
        "* batch.masked_positions.sum()).sum()",
        ("tests/tasks/test_masked.py",),
    ),
    # serving
    Mutant("web/plain_request.py", "if len(found) < len(lines) or", "if", ("tests/web/test_plain_request.py",)),
    Mutant(
        "web/connections.py",
        "self._unread = refusal.unread",
        "self._unread = 0",
        (EARLY_REFUSAL + "::test_a_body_that_comes_later_is_dropped",),
    ),
    Mutant("web/connections.py", " and not self.conn.trailing_data[0]", "", (EARLY_REFUSAL,)),
    Mutant("web/connections.py", "self.conn.our_state is h11.IDLE and ", "", (EARLY_REFUSAL,)),
    Mutant(
        "web/rest/early_refusal.py", "or self.guard.reject(path, request.headers) is not None", "", (EARLY_REFUSAL,)
    ),
    Mutant(
        "web/rest/fields.py",
        "value == one and isinstance(value, bool) == isinstance(one, bool)",
        "value == one",
        ("tests/web/rest/test_fields.py",),
    ),
    Mutant(
        "web/rest/predictions.py",
        "partial(problem_of, predictor)",
        "predictor.problem",
        ("tests/web/rest/test_predictions.py::test_a_prompt_that_is_too_long_stops_no_other",),
    ),
    Mutant(
        "web/rest/completion/engine.py",
        "generation.on_token = generation.on_end = None",
        "pass",
        ("tests/web/rest/completion/test_engine.py",),
    ),
    # plans of trainings
    Mutant(
        "profile/plan/traffic.py",
        "return self.passes * (self.group.size - 1)",
        "return (self.group.size - 1)",
        ("tests/profile/plan/test_traffic.py",),
    ),
    Mutant(
        "train/parallel/units.py",
        "math.ceil(parameter.shape[0] / parts)",
        "(parameter.shape[0] // parts)",
        ("tests/train/parallel/test_units.py",),
    ),
    Mutant(
        "profile/plan/exchange.py",
        "rows * layer.key_dim**2",
        "rows * layer.key_dim",
        ("tests/profile/plan/test_exchange.py",),
    ),
    Mutant(
        "profile/plan/activations.py",
        "step = length // SHORT - 1",
        "step = length // SHORT",
        ("tests/profile/plan/test_activations.py",),
    ),
    Mutant("profile/plan/work.py", "found += last - first", "found += last", ("tests/profile/plan/test_work.py",)),
)


PROCESSES = 2
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "KINETO_LOG_LEVEL": "6"}
OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "-m", "not slow and not gpu")
IMPORTED = ("torch", "numpy", "sympy", "jaxtyping", "hypothesis", "pytest")


def broken_text(mutant: Mutant, path: Path) -> str:
    """Return the file with the mutant; raise unless what it replaces is there exactly once."""
    text = path.read_text()
    if text.count(mutant.before) != 1:
        raise ValueError(f"{mutant.file} has {text.count(mutant.before)} times {mutant.before!r}, expected 1")
    return text.replace(mutant.before, mutant.after)


@contextmanager
def broken_copy(mutant: Mutant | None) -> Iterator[Path]:
    """A folder with the package and its tests, broken in this way; None: not at all."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("qkv", "tests", "examples", "benchmarks"):
            # bytecode too: the times are copied, so it stays valid; not that which is being written
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("*.pyc.*"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        if mutant is not None:
            path = copy / "qkv" / mutant.file
            path.write_text(broken_text(mutant, path))
            for outdated in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
                outdated.unlink()
        yield copy


def run_module(copy: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """`python -m ...` in a copy, on one thread."""
    # an editable install would win over the copy only if it came first on the path; `-m` puts the folder first
    environment = os.environ | ENVIRONMENT
    environment.pop("PYTEST_XDIST_WORKER", None)
    return subprocess.run(
        [sys.executable, "-m", *arguments], cwd=copy, env=environment, capture_output=True, check=False
    )


def files_of(mutant: Mutant) -> list[str]:
    """The tests of a mutant by file: first those of the broken file, then the contract on two small kinds."""
    first = ["test_new_kind.py", f"test_{Path(mutant.file).stem}.py"]
    found = []
    for test in mutant.tests:
        inside = sorted(str(path.relative_to(ROOT)) for path in (ROOT / test).rglob("test_*.py"))
        found += inside or [test]
    return sorted(found, key=lambda file: first.index(name) if (name := Path(file).name) in first else -1, reverse=True)


@dataclass
class FirstFailure:
    """A plugin of pytest that keeps the first test that failed."""

    test: list[str] = field(default_factory=list)

    def pytest_runtest_logreport(self, report):
        if report.failed and not self.test:
            self.test.append(report.nodeid)


def run_files(copy: Path, files: list[str]) -> None:
    """In a fork: run files of tests in a copy until one fails; write the test that did to `killer`."""
    import pytest  # noqa: PLC0415 - only the forks need it

    os.chdir(copy)
    log = os.open("log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.path[0] = str(copy)
    for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
        del sys.modules[name]
    for file in files:
        failure = FirstFailure()
        # plugins are imported already: by this process, or for the file before
        code = pytest.main([*OPTIONS, "-W", "ignore::pytest.PytestAssertRewriteWarning", file], [failure])
        if code == pytest.ExitCode.TESTS_FAILED:
            Path("killer").write_text(failure.test[0])
            return
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            raise RuntimeError(f"pytest ended with {code!r}")
    Path("killer").write_text("")


def fork(copy: Path, files: list[str]) -> int:
    """Run files of tests in a fork; return its process id."""
    process = os.fork()
    if process:
        return process
    try:
        run_files(copy, files)
    except BaseException:  # noqa: BLE001 - the log is where the parent looks
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(0)


def find_killers(mutants: tuple[Mutant, ...]) -> dict[Mutant, str]:
    """The test that catches each mutant, "" where there is none."""
    if "qkv" in sys.modules:
        raise RuntimeError("qkv is imported: no fork would see its mutant")
    waiting, running, killers = list(mutants), {}, {}
    while waiting or running:
        if waiting and len(running) < PROCESSES:
            mutant = waiting.pop(0)
            folder = ExitStack()
            copy = folder.enter_context(broken_copy(mutant))
            running[fork(copy, files_of(mutant))] = mutant, copy, folder
            continue
        mutant, copy, folder = running.pop(os.wait()[0])
        if not (copy / "killer").exists():
            raise RuntimeError(f"pytest did not run on {mutant}: {(copy / 'log').read_text()[-2000:]}")
        killers[mutant] = (copy / "killer").read_text()
        folder.close()
    return killers


def survivors(mutants: tuple[Mutant, ...] = MUTANTS) -> list[Mutant]:
    """The mutants that no test notices."""
    killers = find_killers(mutants)
    with broken_copy(None) as copy:
        done = run_module(copy, "pytest", *OPTIONS, "-n", str(PROCESSES), *sorted(set(killers.values()) - {""}))
    if done.returncode:
        raise RuntimeError(f"tests fail on the unbroken copy; mend that first: {done.stdout.decode()[-2000:]}")
    return [mutant for mutant in mutants if not killers[mutant]]


def main() -> bool:
    """Print the survivors; return whether there are any."""
    os.environ.update(ENVIRONMENT)
    for name in IMPORTED:
        importlib.import_module(name)
    alive = survivors()
    for mutant in alive:
        sys.stdout.write(f"survived: {mutant.file}: {mutant.before!r} -> {mutant.after!r}\n")
    sys.stdout.write(f"{len(MUTANTS) - len(alive)} of {len(MUTANTS)} mutants caught\n")
    return bool(alive)


if __name__ == "__main__":
    sys.exit(main())
