"""Requests of a batch, and what becomes of them <-> messages between the engine and a model's own process."""

from __future__ import annotations

from typing import Any

from tensorgate.gateway.contract.canonical import (
    CancellationToken,
    InferRequest,
    InferResponse,
    ModelView,
    OutputRequest,
    Sequence,
    TopK,
    Trial,
)
from tensorgate.gateway.contract.errors import GatewayError
from tensorgate.gateway.contract.execution import Computation
from tensorgate.gateway.contract.tensor import NOTHING, Tensors
from tensorgate.gateway.crossing.failures import error_of, failure_of
from tensorgate.gateway.crossing.frames import CrossingBroken
from tensorgate.gateway.crossing.messages import Classes
from tensorgate.gateway.crossing.model_messages import ModelStarted, RunAnswer, RunFailure, RunRequest
from tensorgate.gateway.crossing.tensors import TensorReader, TensorWriter
from tensorgate.gateway.crossing.views import signature_message, signature_of, spec_message, spec_of


def run_request(request: InferRequest, inputs: Tensors, writer: TensorWriter) -> RunRequest:
    """A request with its inputs as host arrays. Raises Exhausted."""
    sequence, token = request.sequence, request.cancellation
    return RunRequest(
        writer.tensors(inputs),
        request.id,
        tuple([(output.name, output.top_k) for output in request.outputs]) if request.outputs else (),
        dict(request.parameters),
        request.signature,
        request.priority,
        None if sequence is None else (sequence.id, sequence.start, sequence.end),
        request.deadline,
        request.stream,
        token.request_id,
        token.trial,
    )


def request_of(said: RunRequest, view: ModelView, reader: TensorReader) -> InferRequest:
    """Raises CrossingBroken."""
    token = Trial() if said.trial else CancellationToken()
    token.request_id = said.request_id
    return InferRequest(
        view,
        reader.tensors(said.inputs),
        said.id,
        tuple([OutputRequest(name, top_k) for name, top_k in said.outputs]),
        said.parameters or NOTHING,
        said.signature,
        said.priority,
        None if said.sequence is None else Sequence(*said.sequence),
        said.deadline,
        stream=said.stream,
        cancellation=token,
    )


def outcome_message(outcome: InferResponse | GatewayError, writer: TensorWriter) -> RunAnswer | RunFailure:
    """Arrays have to be on the host. Raises Exhausted."""
    if isinstance(outcome, GatewayError):
        return RunFailure(failure_of(0, outcome))
    return RunAnswer(
        writer.tensors(outcome.outputs),
        dict(outcome.parameters),
        outcome.final,
        {
            name: Classes(writer.tensor("", best.values), writer.tensor("", best.indices))
            for name, best in outcome.classes.items()
        },
    )


def outcome_of(said: RunAnswer | RunFailure, reader: TensorReader) -> InferResponse | GatewayError:
    """Raises CrossingBroken."""
    if isinstance(said, RunFailure):
        return error_of(said.failure)
    classes = {
        name: TopK(reader.tensor(best.values), reader.tensor(best.indices)) for name, best in said.classes.items()
    }
    return InferResponse(reader.tensors(said.outputs), said.parameters or NOTHING, said.final, classes or NOTHING)


def loaded_message(computation: Computation, writer: TensorWriter) -> ModelStarted:
    """What the engine has to know of a computation with one instance."""
    executor = computation.executors[0]
    return ModelStarted(
        tuple(map(spec_message, computation.inputs)),
        tuple(map(spec_message, computation.outputs)),
        tuple(map(spec_message, computation.required)),
        tuple([signature_message(each, writer) for each in computation.signatures.values()]),
        computation.max_batch_size,
        computation.platform,
        computation.device,
        len(computation.executors),
        executor.decoupled,
        executor.merges,
        computation.any_shape,
        computation.sees_requests,
        computation.pure,
        dict(computation.ragged),
    )


def computation_of(said: ModelStarted, reader: TensorReader, **facts: Any) -> Computation:
    """The computation that a process has loaded; `facts` are those that its engine knows. Raises CrossingBroken."""
    try:
        return Computation(
            inputs=tuple(map(spec_of, said.inputs)),
            outputs=tuple(map(spec_of, said.outputs)),
            required=tuple(map(spec_of, said.required)),
            max_batch_size=said.max_batch_size,
            platform=said.platform,
            device=said.device,
            signatures={each.name: signature_of(each, reader) for each in said.signatures} or NOTHING,
            any_shape=said.any_shape,
            sees_requests=said.sees_requests,
            pure=said.pure,
            ragged=said.ragged or NOTHING,
            **facts,
        )
    except (KeyError, ValueError) as error:
        raise CrossingBroken(f"a model's description: {error}") from None
