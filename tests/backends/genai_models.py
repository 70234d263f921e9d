"""Language models for ONNX Runtime GenAI that are made in a moment, and whose words one can tell beforehand.

The hidden state after some tokens is the sum of the vectors of all of them, and of the last one twice more; the scores
of the next token are linear in it. All numbers are small and whole but for a bias that keeps scores apart, so that a
sum is exact in whatever order it is made; and a token that is missed, seen twice or another caller's changes what
follows. `plain` keeps its tokens' vectors as most models keep keys; `paged` keeps them in blocks, as models with
PagedAttention do, but by operators that every device has.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

DEMO = Path(__file__).parents[2] / "config/demo/models/writer"
VOCABULARY, WIDTH, BLOCK, CONTEXT = 1024, 16, 16, 256
END = 1
"""The token after which nothing comes."""
Kind = Literal["plain", "paged"]


def _weights() -> tuple[Any, Any, Any]:
    """Vectors of tokens, scores by vector, bias."""
    random = np.random.default_rng(0)
    vectors = random.integers(-1, 2, (VOCABULARY, WIDTH)).astype(np.float32)
    scores = random.integers(-3, 4, (WIDTH, VOCABULARY)).astype(np.float32)
    return vectors, scores, (np.arange(VOCABULARY) / 4096).astype(np.float32)


def words_after(tokens: list[int], count: int) -> list[int]:
    """The likeliest next tokens, up to the end."""
    vectors, scores, bias = _weights()
    told: list[int] = []
    while len(told) < count:
        known = [*tokens, *told]
        word = int(np.argmax((vectors[known].sum(0) + 2 * vectors[known[-1]]) @ scores + bias))
        if word == END:
            break
        told.append(word)
    return told


def likelihoods(tokens: list[int]) -> Any:
    """FP64 [vocabulary]: the logarithm of how likely each token is next."""
    vectors, scores, bias = _weights()
    found = ((vectors[tokens].sum(0) + 2 * vectors[tokens[-1]]) @ scores + bias).astype(np.float64)
    found -= found.max()
    return found - np.log(np.exp(found).sum())


def write_model(folder: Path, kind: Kind) -> Path:
    """A folder as `path` names one."""
    folder.mkdir(parents=True, exist_ok=True)
    graph = _plain() if kind == "plain" else _paged()
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, folder / "model.onnx")
    shutil.copy(DEMO / "tokenizer.json", folder)
    (folder / "genai_config.json").write_text(json.dumps(_config(kind)))
    return folder


def _config(kind: Kind) -> dict[str, Any]:
    if kind == "plain":
        inputs = {
            "attention_mask": "attention_mask",
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        }
        outputs = {"present_key_names": "present.%d.key", "present_value_names": "present.%d.value"}
    else:
        same = ("block_table", "cumulative_sequence_lengths", "past_sequence_lengths")
        inputs = {name: name for name in same} | {"past_key_names": "keys.%d", "past_value_names": "values.%d"}
        outputs = {"present_key_names": "keys_out.%d", "present_value_names": "values_out.%d"}
    decoder = {
        "filename": "model.onnx",
        "head_size": WIDTH,
        "hidden_size": WIDTH,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "num_hidden_layers": 1,
        "session_options": {"provider_options": []},
        "inputs": {"input_ids": "input_ids", **inputs},
        "outputs": {"logits": "logits", **outputs},
    }
    model = {
        "type": "llama",
        "eos_token_id": END,
        "pad_token_id": 0,
        "vocab_size": VOCABULARY,
        "context_length": CONTEXT,
        "decoder": decoder,
    }
    search = {"do_sample": False, "max_length": CONTEXT, "past_present_share_buffer": False, "num_beams": 1}
    paged = {"dynamic_batching": {"block_size": BLOCK, "num_blocks": 256, "max_batch_size": 16}}
    return {"model": model, "search": search} | ({"engine": paged} if kind == "paged" else {})


# --------------------------------------------------------------------------------------------------------------- graphs


def _node(operator: str, inputs: str, output: str, **attributes: Any) -> Any:
    return helper.make_node(operator, inputs.split(), [output], **attributes)


def _value(name: str, kind: int, *shape: str | int) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def _whole(name: str, *values: int) -> Any:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def _one(name: str, value: int) -> Any:
    return numpy_helper.from_array(np.array(value, np.int64), name)


def _constants() -> list[Any]:
    vectors, scores, bias = _weights()
    named = {"vectors": vectors, "weights": scores, "bias": bias, "two": np.float32(2), "nothing": np.float32(0)}
    return [numpy_helper.from_array(np.asarray(array), name) for name, array in named.items()]


def _tail() -> list[Any]:
    return [
        _node("Mul", "key two", "twice"),
        _node("Add", "sum twice", "hidden"),
        _node("MatMul", "hidden weights", "scores"),
        _node("Add", "scores bias", "logits"),
    ]


def _plain() -> Any:
    """input_ids [B, S], keys [B, 1, P, D] -> logits [B, S, V]"""
    nodes = [
        _node("Gather", "vectors input_ids", "key"),
        _node("Unsqueeze", "key axis1", "new"),
        _node("Concat", "past_key_values.0.key new", "present.0.key", axis=2),
        _node("Concat", "past_key_values.0.value new", "present.0.value", axis=2),
        _node("CumSum", "present.0.key two_axis", "sums"),
        _node("Squeeze", "sums axis1", "flat"),
        _node("Shape", "input_ids", "count", start=1, end=2),
        _node("Neg", "count", "begin"),
        _node("Slice", "flat begin end axis1", "sum"),
        *_tail(),
    ]
    whole, real = TensorProto.INT64, TensorProto.FLOAT
    past, present = ("b", 1, "p", WIDTH), ("b", 1, "t", WIDTH)
    return helper.make_graph(
        nodes,
        "plain",
        [
            _value("input_ids", whole, "b", "s"),
            _value("attention_mask", whole, "b", "t"),
            _value("past_key_values.0.key", real, *past),
            _value("past_key_values.0.value", real, *past),
        ],
        [
            _value("logits", real, "b", "s", VOCABULARY),
            _value("present.0.key", real, *present),
            _value("present.0.value", real, *present),
        ],
        [*_constants(), _whole("axis1", 1), _one("two_axis", 2), _whole("end", 1 << 31)],
    )


def _paged() -> Any:
    """The tokens of all sequences in a row [T], their blocks [S, C], keys [N, BLOCK, 1, D] -> logits [T, V]"""
    nodes = [
        _node("Gather", "vectors input_ids", "key"),
        _node("Size", "input_ids", "count"),
        _node("Range", "zero count one", "at"),
        _node("Cast", "cumulative_sequence_lengths", "begins", to=TensorProto.INT64),
        _node("Cast", "past_sequence_lengths", "pasts", to=TensorProto.INT64),
        _node("Cast", "block_table", "table_", to=TensorProto.INT64),
        _node("Max", "table_ zero", "table"),
        # which sequence each token belongs to, and its place there
        _node("Slice", "begins ones end", "ends"),
        _node("Unsqueeze", "at axis1", "at_column"),
        _node("GreaterOrEqual", "at_column ends", "is_behind"),
        _node("Cast", "is_behind", "behind", to=TensorProto.INT64),
        _node("ReduceSum", "behind axis1", "sequence", keepdims=0),
        _node("Gather", "begins sequence", "begin"),
        _node("Gather", "pasts sequence", "past"),
        _node("Sub", "at begin", "within"),
        _node("Add", "past within", "place"),
        # the slot of the cache where its vector goes
        _node("Gather", "table sequence", "blocks"),
        _node("Unsqueeze", "place axis1", "places"),
        _node("Div", "places block", "column"),
        _node("Mod", "places block", "offset"),
        _node("GatherElements", "blocks column", "own_block", axis=1),
        _node("Mul", "own_block block", "first"),
        _node("Add", "first offset", "slot"),
        _node("Reshape", "keys.0 rows", "cache"),
        _node("ScatterND", "cache slot key", "written"),
        _node("Shape", "keys.0", "cache_shape"),
        _node("Reshape", "written cache_shape", "keys_out.0"),
        _node("Identity", "values.0", "values_out.0"),
        # all slots of its sequence, as far as they lie before it
        _node("Unsqueeze", "blocks axis2", "blocks_"),
        _node("Mul", "blocks_ block", "firsts"),
        _node("Range", "zero block one", "offsets"),
        _node("Add", "firsts offsets", "slots_"),
        _node("Shape", "at", "tokens"),
        _node("Concat", "tokens rest", "by_token", axis=0),
        _node("Reshape", "slots_ by_token", "slots"),
        _node("Gather", "written slots", "context"),
        _node("Shape", "slots", "length_", start=1, end=2),
        _node("Squeeze", "length_", "length"),
        _node("Range", "zero length one", "ordinals"),
        _node("LessOrEqual", "ordinals places", "is_before"),
        _node("Unsqueeze", "is_before axis2", "seen"),
        _node("Where", "seen context nothing", "known"),
        _node("ReduceSum", "known axis1", "sum", keepdims=0),
        *_tail(),
    ]
    whole, short, real = TensorProto.INT64, TensorProto.INT32, TensorProto.FLOAT
    cache = ("n", BLOCK, 1, WIDTH)
    return helper.make_graph(
        nodes,
        "paged",
        [
            _value("input_ids", whole, "t"),
            _value("cumulative_sequence_lengths", short, "s1"),
            _value("past_sequence_lengths", short, "s"),
            _value("block_table", short, "s", "c"),
            _value("keys.0", real, *cache),
            _value("values.0", real, *cache),
        ],
        [
            _value("logits", real, "t", VOCABULARY),
            _value("keys_out.0", real, *cache),
            _value("values_out.0", real, *cache),
        ],
        [
            *_constants(),
            _one("zero", 0),
            _one("one", 1),
            _one("block", BLOCK),
            _whole("ones", 1),
            _whole("axis1", 1),
            _whole("axis2", 2),
            _whole("rows", -1, WIDTH),
            _whole("rest", -1),
            _whole("end", 1 << 31),
        ],
    )
