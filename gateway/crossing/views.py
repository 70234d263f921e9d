"""ModelView <-> message. A view's handle is what differs: on one side the model, on the other the way to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from tensorgate.gateway.contract.call import Call, MustRelay
from tensorgate.gateway.contract.canonical import Handle, ModelView
from tensorgate.gateway.contract.files import ABSOLUTE
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import DTYPES, Signature, TensorSpec
from tensorgate.gateway.crossing.frames import CrossingBroken
from tensorgate.gateway.crossing.messages import ReplicaOffer, SignatureSpec, Spec, View
from tensorgate.gateway.crossing.tensors import TensorReader, TensorWriter


class RelayedForwarder:
    """In a door: the engine passes such calls on, so they go there whole."""

    aliases = ()

    def __init__(self, kinds: frozenset[tuple[str, str]]) -> None:
        self.kinds = kinds

    def takes(self, call: Call, name: str) -> bool:
        if (call.dialect, call.transport) in self.kinds:
            raise MustRelay
        return False

    def forward(self, call: Call, headers: Mapping[str, str], *, streams: bool, whole: bool) -> NoReturn:
        raise MustRelay


def view_message(view: ModelView, serial: int, writer: TensorWriter, replica: ReplicaOffer | None = None) -> View:
    """What a door has to know of a version. Inputs for examples and its configuration stay with the engine."""
    return View(
        serial,
        view.name,
        view.version,
        view.versions,
        tuple(map(spec_message, view.inputs.values())),
        tuple(map(spec_message, view.outputs.values())),
        tuple([signature_message(each, writer) for each in view.signatures.values()]),
        view.max_batch_size,
        view.platform,
        view.decoupled,
        view.merges,
        view.sees_requests,
        () if view.forwarder is None else tuple(sorted(view.forwarder.kinds)),
        {dialect: options.model_dump_json(context=ABSOLUTE) for dialect, options in view.mappings.items()},
        view.devices,
        view.instances,
        replica,
    )


def view_of(said: View, handle: Handle, options: Mapping[str, type[Options]], reader: TensorReader) -> ModelView:
    """`options` has each section of a model that views carry. Raises CrossingBroken."""
    try:
        return ModelView(
            said.name,
            said.version,
            said.versions,
            {spec.name: spec_of(spec) for spec in said.inputs},
            {spec.name: spec_of(spec) for spec in said.outputs},
            {each.name: signature_of(each, reader) for each in said.signatures},
            said.max_batch_size,
            said.platform,
            handle,
            said.decoupled,
            said.merges,
            said.sees_requests,
            {dialect: options[dialect].model_validate_json(text) for dialect, text in said.mappings.items()},
            devices=said.devices,
            instances=said.instances,
            forwarder=RelayedForwarder(frozenset(said.forwards)) if said.forwards else None,
        )
    except (KeyError, ValueError) as error:
        raise CrossingBroken(f"a view of {said.name[:80]}: {error}") from None


def spec_message(spec: TensorSpec) -> Spec:
    """See tensor.TensorSpec."""
    return Spec(spec.name, spec.datatype, spec.shape, spec.optional, spec.labels)


def spec_of(said: Spec) -> TensorSpec:
    """Raises KeyError for a datatype that does not exist."""
    return TensorSpec(said.name, DTYPES[said.datatype], said.shape, said.optional, said.labels)


def signature_message(signature: Signature, writer: TensorWriter) -> SignatureSpec:
    """A signature with the arrays of its defaults."""
    features = None if signature.features is None else _named(signature.features)
    return SignatureSpec(
        signature.name,
        _named(signature.inputs),
        _named(signature.outputs),
        signature.method,
        features,
        writer.tensors(signature.defaults),
        signature.definition,
    )


def signature_of(said: SignatureSpec, reader: TensorReader) -> Signature:
    """Raises KeyError and CrossingBroken."""
    features = None if said.features is None else _specs_of(said.features)
    defaults: Mapping[str, Any] = reader.tensors(said.defaults)
    return Signature(
        said.name,
        _specs_of(said.inputs),
        _specs_of(said.outputs),
        said.method,
        features,
        defaults,
        said.definition,
    )


def _named(specs: Mapping[str, TensorSpec]) -> tuple[tuple[str, Spec], ...]:
    return tuple([(name, spec_message(spec)) for name, spec in specs.items()])


def _specs_of(said: Iterable[tuple[str, Spec]]) -> dict[str, TensorSpec]:
    return {name: spec_of(spec) for name, spec in said}
