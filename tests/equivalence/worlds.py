"""A world: a folder with a configuration, and models in which every two properties meet somewhere.

The same seed makes the same world. Models are drawn so that each takes in as many pairs of properties as it can that
no model had before; ensembles, models of another server and routes are then made of them.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import onnx
import yaml
from onnx import TensorProto, helper
from truth import Model, Output, Step, Tensor, View

CHAT: Final = "{{ messages[-1]['content'] }}"
"""Of a chat, the models see what was said last."""
KEYS: Final = {"alice": "key-of-alice", "bob": "key-of-bob"}
CLASSES: Final = {"once": "Once", "generator": "Stream", "async": "AsyncOnce", "async_generator": "AsyncStream"}
ANY_TYPE: Final = ("FP32", "INT32", "FP64", "INT64", "BYTES", "BOOL", "INT8", "UINT8", "FP16", "INT16", "UINT16")
COUNTED: Final = ("FP32", "FP64", "INT32", "INT64")
"""Datatypes in which ONNX Runtime computes everything."""

AXES: Final[Mapping[str, Sequence[Any]]] = {
    "kind": ("onnx", "python", "python", "triton_python"),
    "flow": ("once", "once", "generator", "async", "async_generator"),
    "answers": (1, 1, 3, 0),
    "datatype": (*COUNTED, *ANY_TYPE),
    "inputs": (1, 2, 3),
    "outputs": (1, 2, 3),
    "batching": ("none", "plain", "waits", "padded", "ragged", "apart"),
    "width": (1, 3, -1),
    "ops": ("none", "none", "pre", "post", "rename"),
    "cache": (False, False, True),
    "signatures": (False, True),
    "adds": (False, True),
    "instances": (1, 2),
    "optional": (False, True),
    "labels": (False, True),
    "form": ("same", "echo", "picked", "id"),
    "fault": ("", "", "", "raise", "refuse", "dtype", "shape", "rank", "rows", "missing", "none"),
}


@dataclass(frozen=True, repr=False)
class World:
    seed: int
    models: Mapping[str, Model]

    def __repr__(self) -> str:
        return f"world {self.seed}"


def make_world(seed: int, size: int = 24) -> World:
    """`size` models by themselves, and some that are made of them."""
    source = random.Random(seed)
    models: dict[str, Model] = {}
    for number, traits in enumerate(_pairwise(source, size)):
        model = _model(f"m{number}", traits, source)
        models[model.name] = model
    for model in (*_always(), *_examples()):
        models[model.name] = model
    for model in (*_ensembles(models, source), *_remotes(models, source), *_routes(models, source)):
        models[model.name] = model
    return World(seed, models)


# --------------------------------------------------------------------------------------------------------------- draws


def _pairwise(source: random.Random, size: int) -> list[dict[str, Any]]:
    seen: set[tuple[Any, ...]] = set()
    chosen = []
    for _ in range(size):
        drawn = [_legal({name: source.choice(values) for name, values in AXES.items()}) for _ in range(20)]
        best = max(drawn, key=lambda traits: len(_pairs(traits) - seen))
        seen |= _pairs(best)
        chosen.append(best)
    return chosen


def _pairs(traits: Mapping[str, Any]) -> set[tuple[Any, ...]]:
    return set(itertools.combinations(traits.items(), 2))


def _legal(traits: dict[str, Any]) -> dict[str, Any]:
    """What goes together: the later of two gives way."""
    for rule in (_as_the_kind_can, _as_batches_can, _as_forms_can, _as_operators_can, _as_faults_show):
        traits |= rule(**traits)
    return traits


def _as_the_kind_can(kind: str, flow: str, signatures: bool, batching: str, datatype: str, **_: Any) -> dict[str, Any]:
    if kind == "python":
        return {} if "generator" in flow else {"answers": 1}
    told = {"flow": "once", "answers": 1, "adds": False, "fault": "", "optional": False}
    told |= {"signatures": signatures and kind == "onnx"}
    if kind == "triton_python" and batching in ("padded", "ragged"):
        told["batching"] = "plain"
    if kind == "onnx" and datatype not in COUNTED:
        told |= {"form": "echo"} if batching != "ragged" else {"datatype": "INT32"}
    return told


def _as_batches_can(batching: str, datatype: str, flow: str, cache: bool, **_: Any) -> dict[str, Any]:
    decoupled = "generator" in flow
    told: dict[str, Any] = {"cache": cache and not decoupled}
    if batching == "ragged" and decoupled:
        return told | {"batching": "plain"}
    if batching == "ragged":
        told |= {"width": -1, "form": "same", "ops": "none", "labels": False}
        told |= {"datatype": "INT32"} if datatype in ("BOOL", "BYTES") else {}
    return told


def _as_forms_can(
    form: str, kind: str, batching: str, datatype: str, optional: bool, cache: bool, labels: bool, **_: Any
) -> dict[str, Any]:
    own = kind == "python" and batching == "none"
    if (form == "id" and not own) or (form == "picked" and (not own or datatype in ("BOOL", "BYTES"))):
        form = "same"
    told = {"form": form, "optional": optional and form != "echo", "cache": cache and form != "id"}
    return told | {"labels": labels and form != "id" and datatype not in ("BOOL", "BYTES", "FP16")}


def _as_operators_can(ops: str, kind: str, datatype: str, form: str, **_: Any) -> dict[str, Any]:
    """Of a class, the YAML declares outputs as callers see them; Triton's take requests as they are."""
    fit = kind == "onnx" if ops == "rename" else kind != "triton_python" and datatype in ("FP32", "FP64")
    return {"ops": ops if fit else "none", "form": "same" if fit and ops == "post" and form == "id" else form}


def _as_faults_show(
    fault: str, ops: str, datatype: str, batching: str, width: int, form: str, **_: Any
) -> dict[str, Any]:
    if not fault or ops != "none" or datatype in ("BOOL", "INT8", "UINT8"):
        return {"fault": ""}
    if fault == "rows" and batching == "none":
        fault = "shape"
    if fault == "shape" and (width == -1 or form != "same"):
        return {"fault": fault, "width": 3, "form": "same", "batching": "plain" if batching == "ragged" else batching}
    odd = fault in ("rank", "dtype", "rows") and form not in ("same", "echo")
    return {"fault": fault, "form": "same" if odd else form}


def _model(name: str, traits: Mapping[str, Any], source: random.Random) -> Model:
    batched = traits["batching"] != "none"
    width = traits["width"]
    shape = (-1, width) if batched else source.choice(((width,), (2, width), (width,)))
    ragged = traits["batching"] == "ragged"
    datatype = traits["datatype"]
    inputs = tuple(
        Tensor(f"x{number}", datatype, shape, traits["optional"] and number > 0 and not ragged)
        for number in range(traits["inputs"])
    )
    outputs = [_output(f"y{number}", number, traits, shape, len(inputs), source) for number in range(traits["outputs"])]
    options: dict[str, Any] = {"instances": traits["instances"]} if traits["instances"] > 1 else {}
    options |= _batching(traits["batching"], ragged, outputs)
    if traits["cache"]:
        options["response_cache"] = True
    renamed = {}
    if traits["ops"] == "rename":
        renamed = {"y0": "z"}
        outputs[0] = replace(outputs[0], name="z")
        options["postprocess"] = [{"op": "rename", "names": {"y0": "z"}}]
    scale = {"op": "scale", "factor": 2, "offset": 1}
    if traits["ops"] == "pre":
        options["preprocess"] = [{**scale, "input": "x0"}]
    if traits["ops"] == "post":
        options["postprocess"] = [{**scale, "input": "y0"}]
    return Model(
        name,
        traits["kind"],
        inputs,
        tuple(outputs),
        traits["flow"],
        traits["answers"],
        8 if batched else 0,
        options,
        _signatures(traits, inputs, outputs) if traits["signatures"] else {},
        traits["adds"],
        traits["fault"],
        ("x0",) if traits["ops"] == "pre" else (),
        ("y0",) if traits["ops"] == "post" else (),
        renamed,
        {outputs[0].name: ("first", "", "third")} if traits["labels"] else {},
        ragged,
    )


def _output(
    name: str, number: int, traits: Mapping[str, Any], shape: tuple[int, ...], inputs: int, source: random.Random
) -> Output:
    form = traits["form"] if number == 0 or traits["form"] == "echo" else source.choice(("same", "first", "sum"))
    batched = traits["batching"] != "none"
    if form == "sum" and (not batched or traits["datatype"] in ("BOOL", "BYTES", "FP16")):
        form = "first"
    if form == "first" and traits["batching"] == "ragged":
        form = "same"  # the first of a row without length would be what is added to it
    if form == "id":
        return Output(name, "BYTES", (1,), form=form)
    if form == "picked":
        shape = (-1,)
    if form == "first":
        shape = (-1,)  # of a tensor without elements, none
    if form == "sum":
        shape = (-1, 1)
    weights = tuple(source.randint(0, 2) for _ in range(inputs - 1))
    of = number % inputs
    return Output(name, traits["datatype"], shape, False, form, source.randint(1, 2), source.randint(0, 5), weights, of)


def _batching(batching: str, ragged: bool, outputs: Sequence[Output]) -> dict[str, Any]:
    if batching == "none":
        return {}
    options: dict[str, Any] = {"max_batch_size": 8}
    if batching == "waits":
        options["max_queue_delay_us"] = 2000
    if batching == "padded":
        options["pad_batches_to"] = [1, 4, 8]
    if batching == "apart":
        options["batching"] = False
    if ragged:
        cut = [{"output": each.name, "axis": 1, "to": "x0.1"} for each in outputs if each.form == "same"]
        options["ragged"] = {"inputs": {"*": {}}, "cut": cut}
    return options


def _signatures(traits: Mapping[str, Any], inputs: Sequence[Tensor], outputs: Sequence[Output]) -> Mapping[str, View]:
    python = traits["kind"] == "python"
    names = {f"in_{each.name}": each.name for each in inputs}
    some = {"out": outputs[-1].name}
    return {
        "serving_default": View(),
        "wide": View(bonus=10 if python else 0),
        "narrow": View(bonus=20 if python else 0, inputs=names, outputs=some),
    }


# -------------------------------------------------------------------------------------------------------- always there


def _always() -> list[Model]:
    """What every world has, whatever is drawn: what clients know best, and callers who must not be mixed up."""
    row = Tensor("x", "FP32", (-1, 2))
    plain = Output("y", "FP32", (-1, 2))
    who = [
        Model(f"me_{name}", "python", (row,), (replace(plain, bias=bias),), max_batch_size=8)
        for bias, name in enumerate(("nobody", "alice", "bob"))
    ]
    two = (replace(plain, name="a", bias=1), replace(plain, name="b", bias=2))
    pair = Model("pair", "python", (Tensor("x", "FP32", (2,)),), tuple(replace(y, shape=(2,)) for y in two))
    views = {
        "serving_default": View(),
        "plus": View(bonus=10),
        "more": View(bonus=20),
        "half": View(bonus=30, outputs={"half": "b"}),
    }
    viewed = Model("viewed", "python", (row,), two, max_batch_size=8, signatures=views)
    # Rows of one request fill a batch: who comes with another signature must not share it.
    letter = Model(
        "letter", "python", (Tensor("x", "BYTES", (1,)),), (Output("y", "BYTES", (1,)),), "generator", adds=True
    )
    text = Tensor("x", "BYTES", (1,)), Output("y", "BYTES", (1,))
    told = {"text": {"kind": "chat", "chat_template": "chat.jinja"}}
    story = Model("story", "python", (text[0],), (text[1],), "generator", 3, options=told)
    answer = Model("answer", "python", (text[0],), (replace(text[1], bias=5),), options=told)
    odd = Model(
        "odd", "python", (Tensor("x", "INT32", (2,)),), (Output("y", "INT32", (2,)),), fault="shape"
    )  # declares [2], gives [3]
    return [*who, pair, viewed, letter, story, answer, odd]


def _examples() -> list[Model]:
    """Of tf.Examples: signatures of classify and regress, each with a bonus of its own."""
    x = Tensor("x", "FP32", (-1, 1))
    scores = Output("scores", "FP32", (-1, 3), form="fan", bias=1)
    value = Output("value", "FP32", (-1, 1), scale=2, bias=1)
    views = {
        "serving_default": View(),
        "kinds": View("classify", 10, {"x": "x"}, {"scores": "scores"}),
        "others": View("classify", 20, {"x": "x"}, {"scores": "scores"}),
        "price": View("regress", 30, {"x": "x"}, {"outputs": "value"}),
    }
    return [
        Model(
            "examples", "python", (x,), (scores, value), max_batch_size=8, signatures=views,
            labels={"scores": ("cat", "dog", "owl")},
        )
    ]  # fmt: skip


# -------------------------------------------------------------------------------------------------- made of the others


def _ensembles(models: Mapping[str, Model], source: random.Random) -> list[Model]:
    """Two steps: a model, and one that takes one of its outputs. What else the first gives, nobody needs."""
    made: list[Model] = []
    firsts = [each for each in models.values() if each.kind in ("onnx", "python", "triton_python") and not each.fault]
    source.shuffle(firsts)
    firsts.sort(key=lambda each: each.name != "pair")
    for first in firsts:
        usable = [
            each
            for each in first.outputs
            if each.form in ("same", "echo") and each.datatype == first.inputs[0].datatype and not first.ragged
        ]
        if not usable or first.answers == 0:
            continue
        name = f"e{len(made)}"
        middle = usable[-1]
        tail = Model(
            f"{name}_tail",
            "python",
            (Tensor("t", middle.datatype, middle.shape),),
            (Output("v", middle.datatype, middle.shape, scale=2, bias=1), Output("w", middle.datatype, middle.shape)),
            "once" if len(made) % 2 else "async",
            max_batch_size=first.max_batch_size,
            options={"max_batch_size": 8} if first.max_batch_size else {},
        )
        inputs = {each.name: each.name for each in first.inputs}
        outputs = [replace(tail.outputs[0], name="end")]
        kept = {middle.name: "middle"}
        if first.outputs[0] is not middle and source.random() < 0.5:
            kept[first.outputs[0].name] = "beside"
            outputs.append(replace(first.outputs[0], name="beside"))
        options: dict[str, Any] = {"max_batch_size": 8} if first.max_batch_size else {}
        made += [
            tail,
            Model(
                name,
                "ensemble",
                tuple(replace(each, optional=False) for each in first.inputs),
                tuple(outputs),
                "generator" if first.decoupled else "once",
                max_batch_size=first.max_batch_size,
                options=options | ({"decoupled": True} if first.decoupled else {}),
                adds=first.adds,
                steps=(Step(first.name, inputs, kept), Step(tail.name, {"t": "middle"}, {"v": "end"})),
            ),
        ]
        if len(made) == 12:
            break
    return made


def _remotes(models: Mapping[str, Model], source: random.Random) -> list[Model]:
    """Models of the other server, which has the same: one over each way to it."""
    made: list[Model] = []
    ways = [
        f"{dialect} {transport}"
        for dialect in ("open_inference", "tf_serving", "grps")
        for transport in ("grpc", "http")
    ]
    for way in (*ways, "open_inference grpc", "open_inference http"):
        able = [each for each in models.values() if _reachable(each, way)]
        if not able:
            continue
        behind = source.choice(able)
        carried = way.startswith("open_inference")
        made.append(
            Model(
                f"r{len(made)}",
                "remote",
                behind.inputs,
                behind.outputs,
                behind.flow,
                max_batch_size=behind.max_batch_size,
                adds=behind.adds and carried,
                behind=behind.name,
                upstream=way,
            )
        )
    return made


def _reachable(model: Model, way: str) -> bool:
    if model.kind not in ("onnx", "python", "triton_python") or model.options.get("response_cache") or model.ragged:
        return False
    if model.decoupled and way != "open_inference grpc":
        return False
    if any(each.form == "id" for each in model.outputs) or any(each.optional for each in model.inputs):
        return False
    types = {each.datatype for each in (*model.inputs, *model.outputs)}
    if way == "open_inference grpc":
        return True
    if way == "tf_serving http" or way == "grps http":
        return types <= {"FP32", "FP64", "INT32", "INT64"}
    return types <= {"FP32", "FP64", "INT32", "INT64", "INT8", "UINT8", "INT16"}


def _routes(models: Mapping[str, Model], source: random.Random) -> list[Model]:
    me = models["me_nobody"]
    made = [
        Model(
            "whoami",
            "route",
            me.inputs,
            me.outputs,
            max_batch_size=8,
            behind=me.name,
            callers={"alice": "me_alice", "bob": "me_bob"},
        )
    ]
    able = [each for each in models.values() if each.kind != "remote"]
    mirrored = ["pair", *[each.name for each in source.sample(able, 3)]]
    for number, name in enumerate(mirrored):
        behind = models[name]
        options = {"mirror": {"to": [{"model": name}]}} if not behind.decoupled else {"sticky": {"caller": True}}
        made.append(replace(behind, name=f"way{number}", kind="route", behind=name, options=options, steps=()))
    return made


# --------------------------------------------------------------------------------------------------------------- files


def write_world(world: World, folder: Path) -> None:
    """The models' files; the configuration itself is `configuration`."""
    shutil.copy(Path(__file__).with_name("model_code.py"), folder / "models.py")
    (folder / "chat.jinja").write_text(CHAT)
    for model in world.models.values():
        if model.kind == "onnx":
            _write_onnx(model, folder / model.name / "1")
        if model.kind == "triton_python":
            _write_triton(model, folder / model.name / "1")
        for output, names in model.labels.items():
            (folder / f"{model.name}_{output}.txt").write_text("".join(f"{name}\n" for name in names))


def configuration(world: World, upstream: Mapping[str, str] | None, mode: str = "optional") -> str:
    """The YAML. `upstream`: where the other server is, by transport; None: this is the other one, which has no routes
    and no models of others.
    """
    models: dict[str, Any] = {}
    routes: dict[str, Any] = {}
    for model in world.models.values():
        if model.kind == "route":
            rules = [{"caller": who, "to": [{"model": name}]} for who, name in model.callers.items()]
            routes[model.name] = {
                "targets": [{"model": model.behind}],
                **({"match": rules} if rules else {}),
                **model.options,
            }
        elif model.kind == "remote":
            if upstream is not None:
                models[model.name] = _remote(model, upstream)
        else:
            models[model.name] = _entry(model)
    bind = {"bind": "127.0.0.1:0"}
    listen = {"http": [bind], "grpc": [dict(bind)], "metrics": dict(bind)}
    told: dict[str, Any] = {"listen": listen, "models": models, "grps": {"initially_online": True}}
    told |= {"drain_seconds": 2, "supervise": False}
    if upstream is not None:
        told["routes"] = routes
        keys = {name: {"sha256": hashlib.sha256(key.encode()).hexdigest()} for name, key in KEYS.items()}
        told["auth"] = {"mode": mode, "keys": keys, "page": "open", "metrics": "open"}
    return yaml.safe_dump(told, sort_keys=False)


def _entry(model: Model) -> dict[str, Any]:
    entry: dict[str, Any] = {"backend": model.kind}
    before = {new: old for old, new in model.renamed.items()}
    outputs = [replace(each, name=before.get(each.name, each.name)).yaml for each in model.outputs]
    if model.kind == "onnx":
        entry |= {"path": model.name, "intra_op_threads": 1}
    elif model.kind == "ensemble":
        steps = [
            {"model": each.model, "inputs": dict(each.inputs), "outputs": dict(each.outputs)} for each in model.steps
        ]
        entry |= {"steps": steps, "inputs": [each.yaml for each in model.inputs], "outputs": outputs}
    else:
        path = model.name if model.kind == "triton_python" else f"models.py:{CLASSES[model.flow]}"
        entry |= {"path": path, "inputs": [each.yaml for each in model.inputs], "outputs": outputs}
    if model.kind == "python":
        entry["parameters"] = _parameters(model)
    if model.max_batch_size:
        entry["max_batch_size"] = model.max_batch_size
    entry |= model.options
    views = {name: _view(model, view) for name, view in model.signatures.items() if name != "serving_default"}
    if views:
        entry["signatures"] = views
    if model.labels:
        entry["class_labels"] = {output: f"{model.name}_{output}.txt" for output in model.labels}
    return entry


def _view(model: Model, view: View) -> dict[str, Any]:
    if view.method == "classify":
        return {"method": "classify", "inputs": dict(view.inputs), "scores": view.outputs["scores"]}
    told: dict[str, Any] = {} if view.method == "predict" else {"method": view.method}
    if view.inputs:
        told["inputs"] = dict(view.inputs)
    if view.outputs:
        told["outputs"] = dict(view.outputs)
    return told


def _parameters(model: Model) -> dict[str, Any]:
    before = {new: old for old, new in model.renamed.items()}
    batched = model.max_batch_size > 0
    outputs = [{**each.formula, "name": before.get(each.name, each.name), "batched": batched} for each in model.outputs]
    return {
        "inputs": [each.name for each in model.inputs],
        "outputs": outputs,
        "signatures": {name: view.bonus for name, view in model.signatures.items()},
        "adds": model.adds,
        "answers": model.answers,
        "fault": model.fault,
        # Others come meanwhile: so they wait for each other, and share a batch.
        "takes_s": 0.002 if batched else 0,
    }


def _remote(model: Model, upstream: Mapping[str, str]) -> dict[str, Any]:
    dialect, transport = model.upstream.split()
    entry: dict[str, Any] = {
        "backend": "remote",
        "upstream": {
            "dialect": dialect, "transport": transport, "address": upstream[transport], "model": model.behind,
        },
        "inputs": [each.yaml for each in model.inputs],
        "outputs": [each.yaml for each in model.outputs],
    }  # fmt: skip
    if dialect == "grps" or dialect == "tf_serving":
        entry["upstream"]["version"] = 1
    if model.decoupled:
        entry["decoupled"] = True  # of a model whose tensors are declared, nobody asks the server
    if model.max_batch_size:
        entry["max_batch_size"] = model.max_batch_size
    return entry


TRITON = """
from __future__ import annotations

import json
import numpy as np
import triton_python_backend_utils as pb_utils
{code}

P = json.loads({parameters!r})


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            found = [(name, pb_utils.get_input_tensor_by_name(request, name)) for name in P["inputs"]]
            inputs = {{name: tensor.as_numpy() for name, tensor in found if tensor is not None}}
            made = made_of(P, inputs, None, 0)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in made.items()]))
        return responses
"""


def _write_triton(model: Model, folder: Path) -> None:
    folder.mkdir(parents=True)
    lines = Path(__file__).with_name("model_code.py").read_text()
    code = lines[lines.index("def made_of") : lines.index("def spoil")]
    (folder / "model.py").write_text(TRITON.format(code=code, parameters=json.dumps(_parameters(model))))


_ONNX_TYPES: Final = {
    "FP32": TensorProto.FLOAT, "FP64": TensorProto.DOUBLE, "FP16": TensorProto.FLOAT16, "BOOL": TensorProto.BOOL,
    "BYTES": TensorProto.STRING, "INT8": TensorProto.INT8, "INT16": TensorProto.INT16, "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64, "UINT8": TensorProto.UINT8, "UINT16": TensorProto.UINT16,
}  # fmt: skip


def _write_onnx(model: Model, folder: Path) -> None:
    folder.mkdir(parents=True)
    nodes: list[Any] = []
    constants: list[Any] = []
    kind = _ONNX_TYPES[model.inputs[0].datatype]

    def constant(value: int, datatype: int = kind, shape: Sequence[int] = ()) -> str:
        name = f"c{len(constants)}"
        constants.append(helper.make_tensor(name, datatype, shape, [value]))
        return name

    def node(op: str, *inputs: str, **attributes: Any) -> str:
        name = f"t{len(nodes)}"
        nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    before = {new: old for old, new in model.renamed.items()}
    for output in model.outputs:
        x = model.inputs[0].name
        if output.form == "echo":
            made = model.inputs[output.of].name
        elif output.form == "sum":
            summed = node("ReduceSum", x, constant(1, TensorProto.INT64, [1]), keepdims=1)
            made = node("Add", node("Mul", summed, constant(output.scale)), constant(output.bias))
        else:
            made = node("Mul", x, constant(output.scale))
            for weight, other in zip(output.weights, model.inputs[1:], strict=False):
                made = node("Add", made, node("Mul", other.name, constant(weight)))
            made = node("Add", made, constant(output.bias))
            if output.form == "first" and model.max_batch_size:
                made = node("Gather", made, constant(0, TensorProto.INT64), axis=1)
            elif output.form == "first":
                flat = node("Reshape", made, constant(-1, TensorProto.INT64, [1]))
                ends = constant(0, TensorProto.INT64, [1]), constant(1, TensorProto.INT64, [1])
                made = node("Slice", flat, *ends)
        nodes.append(helper.make_node("Identity", [made], [before.get(output.name, output.name)]))

    def info(tensor: Tensor, name: str) -> Any:
        batched = model.max_batch_size > 0
        dims = [
            "n" if batched and axis == 0 else f"{name}_{axis}" if size < 0 else size
            for axis, size in enumerate(tensor.shape)
        ]
        return helper.make_tensor_value_info(name, _ONNX_TYPES[tensor.datatype], dims)

    inputs = [info(each, each.name) for each in model.inputs]
    outputs = [info(each, before.get(each.name, each.name)) for each in model.outputs]
    graph = helper.make_graph(nodes, model.name, inputs, outputs, constants)
    whole = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(whole, str(folder / "model.onnx"))
