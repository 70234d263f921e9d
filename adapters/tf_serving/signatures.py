"""Which of a model's signatures a request means, and which outputs that shows."""

from __future__ import annotations

from tensorgate.gateway.contract.canonical import ModelView, OutputRequest
from tensorgate.gateway.contract.errors import SignatureNotFound
from tensorgate.gateway.contract.tensor import Signature


def signature_of(view: ModelView, name: str) -> Signature:
    """Raises SignatureNotFound."""
    try:
        return view.signatures[name]
    except KeyError:
        raise SignatureNotFound(view.name, name) from None


def outputs_of(view: ModelView, signature: Signature) -> tuple[OutputRequest, ...]:
    """The signature's outputs by the model's names; nothing, which means all, where it shows all of them."""
    wanted = dict.fromkeys([spec.name for spec in signature.outputs.values()])
    return () if wanted.keys() == view.outputs.keys() else tuple([OutputRequest(name) for name in wanted])
