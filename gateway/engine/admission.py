"""Whether a model takes a request, in how many rows, with whom it may share a batch, and how long it is likely to run.

An Admission is made once for all requests of the same shapes, and looked up for each: what a request costs here is one
look-up in a dictionary.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tensorgate.gateway.contract.canonical import InferRequest, takes_whole_outputs
from tensorgate.gateway.contract.errors import UnknownOutput
from tensorgate.gateway.contract.tensor import (
    DEFAULT_SIGNATURE,
    NOTHING,
    Signature,
    Tensors,
    TensorSpec,
    check_inputs,
    common_rows,
)

INLINE_BELOW_SECONDS: Final = 100e-6
"""A hop to a thread and back costs about as much processor time under load; what is quicker runs on the loop."""
INLINE_UNTIL_SECONDS: Final = 150e-6
"""What runs on the loop stays there until it takes this long: whose time lies near the bound does not go to and fro."""
BATCH_COST_SECONDS: Final = 25e-6
"""What a request in a batch costs beside its run: quicker requests run alone, though others have come with them."""
_REMEMBERED_SHAPES: Final = 256
_SMALL_BYTES: Final = 16 << 10
_ANY_LENGTH: Final = 1024
"""Up to this, requests of any length may share a batch."""
_DEFAULTS: Final = ("", DEFAULT_SIGNATURE)
"""What callers say who mean the default signature: some dialects always name one."""


@dataclass(slots=True, eq=False)
class Admission:
    """What the model says of a request that it accepts: how many rows, with whom it may share a batch (None: with
    nobody).

    `seconds` is how long a request of exactly these shapes keeps its thread busy, first as warm-up lets guess, then
    as measured: it falls at once and rises slowly, so that one noisy measurement does not count. Admissions are
    shared by all requests of the same shapes. Below `inline_below` seconds it may run on the loop.
    """

    rows: int
    batch_key: Hashable | None
    seconds: float = 1.0
    inline_below: float = INLINE_BELOW_SECONDS

    def measured(self, seconds: float, requests: int = 1) -> None:
        """How long a run has taken: of several such requests together, it is no less than one alone would take."""
        most = self.seconds * 1.1 if requests == 1 else self.seconds
        self.seconds = seconds = min(seconds, most)
        if seconds < INLINE_BELOW_SECONDS:
            self.inline_below = INLINE_UNTIL_SECONDS
        elif seconds >= INLINE_UNTIL_SECONDS:
            self.inline_below = INLINE_BELOW_SECONDS

    def benefits_from(self, company: float) -> bool:
        """Whether it is better to wait for others, so that so many requests share a run: they save all of their own
        runs but one, and cost a place in a batch each, and a hop to a thread where they are too much for the loop.
        """
        hop = INLINE_BELOW_SECONDS if self.seconds * company >= INLINE_BELOW_SECONDS else 0.0
        return self.batch_key is not None and self.seconds * (company - 1) > BATCH_COST_SECONDS * company + hop


def are_quick(admissions: Sequence[Admission]) -> bool:
    """Whether requests may run together on the loop: as far as one knows, they take as long as one by one."""
    return sum([admission.seconds for admission in admissions]) < INLINE_BELOW_SECONDS


@dataclass(slots=True, eq=False)
class AdmissionCheck:
    """Whether a request fits the computation, remembered by input names, dtypes and shapes: a repeated shape costs
    one look-up. `signatures` are those that the computation itself tells apart.

    `seconds` is the time of a small request, as warm-up measured it: the first guess for shapes not seen yet.
    `any_shape`: requests by a signature may have other shapes than required; their rows never meet those of others.
    `sees_requests`: the computation is shown the signature, and whether a stream is wanted; who differs in it shares no
    batch.
    `ragged` are the axes of inputs in which requests that share a batch may differ.
    """

    name: str
    required: Mapping[str, TensorSpec]
    max_batch_size: int
    merges: bool = True
    seconds: float = 1.0
    signatures: Mapping[str, Signature] = NOTHING
    any_shape: bool = False
    sees_requests: bool = False
    ragged: Mapping[str, tuple[int, ...]] = NOTHING
    # Never stale: a check is one version's, and the key has all that _check looks at.
    _known: dict[tuple[Any, ...], Admission] = field(default_factory=dict)
    _batch_keys: dict[Hashable, object] = field(default_factory=dict)

    def admit(self, request: InferRequest) -> Admission:
        """Raises InvalidArgument's kinds if the computation cannot take these inputs or has not these outputs."""
        inputs = request.inputs
        key: tuple[Any, ...]
        if len(inputs) == 1:  # the usual case
            ((name, array),) = inputs.items()
            key = ((name, array.dtype, array.shape),)
        else:
            key = tuple([(name, array.dtype, array.shape) for name, array in inputs.items()])
        own = self.signatures.get(request.signature) if self.signatures else None
        any_shape = own is not None or (self.any_shape and bool(request.signature))
        if own is not None:
            key = (own.name, *key)
        elif any_shape:
            key = (None, *key)
        shown = None
        if self.sees_requests and (request.stream or request.signature not in _DEFAULTS):
            shown = "" if request.signature in _DEFAULTS else request.signature, request.stream
            key = (shown, *key)
        ragged = self.ragged if self.ragged and takes_whole_outputs(request) else NOTHING
        if ragged:
            key = (True, *key)
        admission = self._known.get(key)
        if admission is None:
            admission = self._check(inputs, own, any_shape, ragged, shown)
            if len(self._known) >= _REMEMBERED_SHAPES:
                self._known.clear()
                self._batch_keys.clear()
            self._known[key] = admission
        if request.outputs:
            _check_outputs(request, own)
        return admission

    def _check(
        self,
        inputs: Tensors,
        own: Signature | None,
        any_shape: bool,
        ragged: Mapping[str, tuple[int, ...]],
        shown: Hashable,
    ) -> Admission:
        """The shapes of a signature's inputs are for its function to check: TensorFlow Serving does not."""
        required = self.required if own is None else {spec.name: spec for spec in own.inputs.values()}
        if any_shape:
            required = {name: replace(spec, shape=None) for name, spec in required.items()}
        rows = common_rows(inputs) if self.max_batch_size else None
        if rows is None:
            check_inputs(self.name, inputs, required, 0)
            return Admission(1, None, self._guess(inputs))
        check_inputs(self.name, inputs, required, self.max_batch_size)
        if not self.merges:
            return Admission(rows, None, self._guess(inputs))
        key: Any = tuple(
            sorted(
                (name, str(array.dtype), _trailing(array.shape, ragged.get(name, ()))) for name, array in inputs.items()
            )
        )
        if ragged:  # those of the same shapes that are not lengthened stay apart
            key = (True, key)
        # Who may share a batch is looked up for every request: an object is compared in no time, all this is not.
        batch_key = self._batch_keys.setdefault((own and own.name, shown, key), object())
        return Admission(rows, batch_key, self._guess(inputs))

    def _guess(self, inputs: Tensors) -> float:
        """A small request of another shape is likely as quick as the small one of the warm-up; of a large one nothing
        is known.
        """
        return self.seconds if sum(array.nbytes for array in inputs.values()) <= _SMALL_BYTES else 1.0


def _check_outputs(request: InferRequest, own: Signature | None) -> None:
    """Raises UnknownOutput."""
    outputs = request.view.outputs if own is None else {spec.name for spec in own.outputs.values()}
    for output in request.outputs:
        if output.name not in outputs:
            raise UnknownOutput(output.name, request.view.name)


def _trailing(shape: tuple[int, ...], ragged: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a row as far as rows that share a batch must agree in it. Lengths along ragged axes may differ, but
    large ones by less than half: what a caller sends must not cost others many times the memory that it is.
    """
    return tuple(
        [-(max(size, _ANY_LENGTH) - 1).bit_length() if axis in ragged else size for axis, size in enumerate(shape)][1:]
    )
