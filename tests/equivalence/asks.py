"""What callers may ask of a world, and what must come back.

A form says what it can carry. What it cannot, or what somebody has spoiled on purpose, is sent all the same: then
nobody but the contract knows the answer, and all that is compared is that both servers give the same.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import grps_forms
import numpy as np
import text_forms
import tfs_forms
import v2_forms
from form import DEFAULT, Ask, Form, Unknown
from truth import BAD, DTYPES, Arrays, Asked, Model, Refused, Tensor, answers, best_classes
from wire import Message
from worlds import KEYS

FORMS: Final[Mapping[str, Form]] = {
    form.name: form for form in (*v2_forms.FORMS, *tfs_forms.FORMS, *grps_forms.FORMS, *text_forms.FORMS)
}
HTTP_QUIRKS: Final = ("chunked", "pieces", "expect", "close", "old", "twin", "")
_NO_CLASSES: Final = ("BOOL", "FP16", "BYTES")
PLAIN_SEEDS: Final = 4
_FAULTY, _SELECTS = 0.35, 0.6
"""How many requests to a model with a fault show it, and how many name outputs where they can."""
GRPC_QUIRKS: Final = ("trailers", "trailers", "noise", "empty", "cancelled", "pieces", "")

# ------------------------------------------------------------------------------------------------- what must come back


def expected(models: Mapping[str, Model], ask: Ask) -> list[Arrays]:
    """All answers, as the form shows them. Raises Refused where there is none, Unknown."""
    form = FORMS[ask.form]
    model = ask.model
    _check_known(models, form, ask)
    add = ask.parameters.get("add", 0) if form.parameters else 0
    signature = ask.signature if form.dialect == "tfs" else ""
    # Who names a version gets that of the route's own targets, whoever asks; in grps everybody does.
    caller = "" if ask.version or form.dialect == "grps" else ask.caller
    asked = Asked(signature or DEFAULT, add, ask.id if form.dialect == "v2" else "", caller)
    if model.decoupled and not form.streams and not form.generators:
        raise Refused("a decoupled model")
    try:
        told = answers(models, model, ask.tensors, asked)
    except Refused as error:
        raise Refused(str(error), [_shown(form, ask, answer) for answer in error.answers]) from None
    if form.dialect == "openai":
        told = [_joined(told)]
    if not form.streams and len(told) != 1:
        raise Refused("not one answer")
    shown = [_shown(form, ask, answer) for answer in told]
    if form.name.startswith("tfs json row"):
        _check_rows(shown[0])
    if form.name == "grps ndarray" and model.outputs[0].datatype != "FP32":
        raise Refused("no float32")
    return shown


def _joined(told: Sequence[Arrays]) -> Arrays:
    """The pieces of texts as one."""
    texts = np.empty(1, np.object_)
    (name,) = told[0]
    texts[0] = b"".join([answer[name].item() for answer in told])
    return {name: texts}


def _shown(form: Form, ask: Ask, answer: Arrays) -> Arrays:
    """What of an answer its caller gets, by the names that it knows."""
    if form.name == "grps ndarray":
        first = ask.model.outputs[0].name
        return {first: answer[first]}
    names = ask.outputs
    if form.dialect == "tfs" and ask.view.outputs:
        answer = {outer: answer[inner] for outer, inner in ask.view.outputs.items()}
    return {name: _classified(ask, name, answer[name]) for name in names or answer}


def _check_known(models: Mapping[str, Model], form: Form, ask: Ask) -> None:
    """Raises Unknown where the formula does not say what the contract makes of such a request."""
    model = ask.model
    if ask.spoil or form.name.startswith("tfs example"):
        raise Unknown("spoilt, or of examples")
    names = [ask.view.outputs.get(name, name) for name in ask.outputs or ask.view.outputs]
    wanted = [each for each in model.outputs if not names or each.name in names]
    given = {"BYTES" if each.name in ask.classes else each.datatype for each in wanted}
    if not ({each.datatype for each in model.inputs} <= form.takes and given <= form.gives):
        raise Unknown("datatypes")
    empty = any(array.size == 0 for array in ask.tensors.values())
    if form.dialect != "v2" and (empty or len(ask.tensors) < len(model.inputs)):
        raise Unknown("optional or empty")
    if empty and model.upstream and not model.upstream.startswith("open_inference"):
        raise Unknown("empty, by a dialect that has no word for it")
    if model.outputs[0] not in wanted and "rows" in (model.fault, behind(models, model).fault):
        raise Unknown("rows of an output that nobody wants")
    if form.flat and any(_filled(each, ask.tensors) != ask.tensors[each.name].shape for each in _sent(ask)):
        raise Unknown("another shape")
    _check_classes(ask)


def _check_classes(ask: Ask) -> None:
    floats = [array for array in ask.tensors.values() if array.dtype.kind == "f"]
    if ask.classes and any(np.isnan(array).any() or np.isinf(array).any() for array in floats):
        raise Unknown("classes of what is no number")
    if ask.classes and any((np.signbit(array) & (array == 0)).any() for array in floats):
        raise Unknown("a zero whose sign shows as text, and ONNX Runtime leaves out what adds zero")
    if any(ask.model.spec(name).datatype in _NO_CLASSES for name in ask.classes):
        raise Unknown("no classes of that")


def _sent(ask: Ask) -> list[Tensor]:
    return [each for each in ask.model.inputs if each.name in ask.tensors]


def _filled(spec: Tensor, tensors: Arrays) -> tuple[int, ...]:
    """What shape a flat list becomes: the innermost variable dimension takes what the others leave."""
    array = tensors[spec.name]
    shape = list(spec.shape)
    places = [place for place, size in enumerate(shape) if size < 0]
    left = array.size // max(1, math.prod(size for size in shape if size > 0))
    for place in reversed(places):
        shape[place], left = left, 1
    return tuple(shape)


def _classified(ask: Ask, name: str, array: Any) -> Any:
    k = ask.classes.get(name)
    if not k:
        return array
    labels = ask.model.labels.get(name, ())
    return best_classes(array, k, labels, ask.model.max_batch_size > 0)


def _check_rows(answer: Arrays) -> None:
    sizes = {array.shape[:1] for array in answer.values()}
    if len(sizes) != 1 or () in sizes:
        raise Refused("no common rows")


def same_arrays(found: Arrays, truth: Arrays, form: Form) -> bool:
    if found.keys() != truth.keys():
        return False
    return all(_same(found[name], truth[name], form) for name in truth)


def _same(found: Any, truth: Any, form: Form) -> bool:
    if form.flat:
        found, truth = found.reshape(-1), truth.reshape(-1)
    if found.shape != truth.shape:
        return False
    if truth.dtype == np.object_:
        return bool(found.ravel().tolist() == truth.ravel().tolist())
    if found.dtype != truth.dtype:
        return False
    return bool(np.array_equal(found, truth, equal_nan=truth.dtype.kind == "f"))


# ------------------------------------------------------------------------------------------------------------- drawing


def make_ask(models: Mapping[str, Model], model: Model, form: str, seed: int) -> Ask:
    """Everything else of a request, by a number: the first few are the plainest."""
    draw = _Draw(random.Random(seed), FORMS[form], seed < PLAIN_SEEDS)
    ask = Ask(model, form, draw.tensors(model, behind(models, model).fault), seed=seed)
    return draw.manners(draw.parameters(draw.outputs(ask)))


class _Draw:
    """What a request has beside its model and form."""

    def __init__(self, source: random.Random, form: Form, plain: bool) -> None:
        self._source = source
        self._form = form
        self._plain = plain

    def _likes(self, share: float) -> bool:
        return not self._plain and self._source.random() < share

    def tensors(self, model: Model, fault: str) -> dict[str, Any]:
        """All inputs, or some of those that are optional; now and then with what the model does not bear."""
        source = self._source
        rows = source.choice((1, 1, 1, 2, 3, 8))
        wide = source.choice((1, 2, 3, 5, 0 if self._likes(0.1) else 4, 300 if self._likes(0.05) else 2))
        tensors = {}
        for each in model.inputs:
            if each.optional and self._likes(0.4):
                continue
            shape = [wide if size < 0 else size for size in each.shape]
            if model.max_batch_size:
                shape[0] = rows
            tensors[each.name] = _values(each.datatype, shape, source, special=self._likes(0.05))
        first = tensors[model.inputs[0].name]
        if fault and first.size and first.dtype != np.bool_ and source.random() < _FAULTY:
            first.flat[0] = b"99" if first.dtype == np.object_ else BAD
        return tensors

    def outputs(self, ask: Ask) -> Ask:
        """Which of them, in any order; classes of them; by which signature."""
        source, form, model = self._source, self._form, ask.model
        names = [each.name for each in model.outputs]
        if form.dialect == "tfs" and model.signatures:
            able = [name for name, view in model.signatures.items() if view.method == "predict"]
            ask = replace(ask, signature=source.choice(able))
            names = [*ask.view.outputs] or names
        if form.selects and len(names) > 1 and source.random() < _SELECTS:
            ask = replace(ask, outputs=tuple(source.sample(names, source.randint(1, len(names)))))
        if form.selects and form.dialect == "v2" and self._likes(0.2):
            chosen = ask.outputs or tuple(names)
            able = [name for name in chosen if model.spec(name).datatype not in _NO_CLASSES or self._likes(0.1)]
            ask = replace(ask, outputs=chosen, classes={name: source.randint(1, 4) for name in able})
        return ask

    def parameters(self, ask: Ask) -> Ask:
        """Those that the model sees and some that it does not, and an id."""
        source, form = self._source, self._form
        parameters: dict[str, Any] = {}
        if form.parameters and source.random() < (0.6 if ask.model.adds else 0.1):
            parameters["add"] = source.randint(0, 9)
        if form.parameters and self._likes(0.1):
            parameters["timeout"] = 50_000_000
        if form.parameters and self._likes(0.1):
            parameters["word"] = source.choice(("ä", "x", "7"))
        if form.dialect == "v2" and self._likes(0.5):
            ask = replace(ask, id=source.choice(("7", "an id", "ü", "x" * 40, str(ask.seed))))
        return replace(ask, parameters=parameters)

    def manners(self, ask: Ask) -> Ask:
        """Who asks, for how long, and how it is cut on the wire."""
        source, form = self._source, self._form
        named = bool(ask.model.callers)
        if self._likes(0.15):
            ask = replace(ask, version="1")
        if self._likes(0.1):
            ask = replace(ask, timeout_s=30.0)
        if named or self._likes(0.15):
            ask = replace(ask, caller=source.choice(("", *KEYS)))
        if named or self._likes(0.25):
            ask = replace(ask, quirk=source.choice(HTTP_QUIRKS if form.transport == "http" else GRPC_QUIRKS))
        if form.transport == "grpc" and self._likes(0.1):
            ask = replace(ask, genuine=True, quirk="")
        return replace(ask, spoil=source.randint(1, 1 << 30)) if self._likes(0.08) else ask


def shows_fault(ask: Ask) -> bool:
    """Whether the model, if it has a fault, has to show it."""
    return not ask.spoil and bool((ask.tensors[ask.model.inputs[0].name] == BAD).any())


def behind(models: Mapping[str, Model], model: Model) -> Model:
    """What a route or a remote model leads to, for most callers."""
    return behind(models, models[model.behind]) if model.behind else model


def _values(datatype: str, shape: Sequence[int], source: random.Random, *, special: bool) -> Any:
    size = math.prod(shape)
    if datatype == "BYTES":
        flat = np.empty(size, np.object_)
        flat[:] = [
            source.choice(("a", "ß", "", "漢字", '"\\', "x" * 40)).encode() + b"%d" % place for place in range(size)
        ]
        return flat.reshape(shape)
    if datatype == "BOOL":
        return np.array([source.random() < 0.5 for _ in range(size)], np.bool_).reshape(shape)
    most = 9 if datatype in ("INT8", "UINT8", "FP16") else 3000
    if datatype in ("FP32", "FP64"):
        numbers = [source.randint(0, most * 4) / 4 for _ in range(size)]
        if special and numbers:
            numbers[source.randrange(size)] = source.choice((math.inf, -math.inf, math.nan, -0.0))
    else:
        numbers = [source.randint(0, most) for _ in range(size)]
    array = np.array(numbers, DTYPES[datatype]).reshape(shape)
    array[array == BAD] = BAD - 1
    return array


def encode(ask: Ask) -> Message:
    return FORMS[ask.form].encode(ask)


def able_forms(model: Model) -> list[str]:
    """Those that make sense for it; what a form cannot carry is asked all the same, now and then."""
    names = [name for name in FORMS if not name.startswith(("tfs example", "text "))]
    if "text" in model.options:
        names += [name for name in FORMS if name.startswith("text ")] * 2
    if model.name == "examples":
        names += ["tfs example json", "tfs example grpc", "tfs example multi"] * 2
    if len(model.inputs) > 1:
        names = [name for name in names if name not in ("grps ndarray", "v2 raw")]
    if any(each.datatype not in tfs_forms.TYPES for each in model.inputs):
        names = [name for name in names if not name.startswith("tfs grpc")]
    return names
