"""How a configured model becomes a computation: here, in a process of its own, or in whatever process is told how.

`loader` is the repository's way. A ModelProgram says all of it in plain values, so that another process can go the same
way: a model's own process, or a door that runs a copy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tensorgate.backends.execution import pipeline as pipelines
from tensorgate.backends.execution.own_process import ModelProcesses
from tensorgate.backends.execution.spec_inference import (
    NO_OPERATORS,
    Misfit,
    input_specs,
    make_ops,
    output_specs,
    with_rows,
)
from tensorgate.gateway.config import ModelConfig, model_validator
from tensorgate.gateway.contract.backend import BackendKind, Described, ModelSource
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.execution import Computation
from tensorgate.gateway.contract.files import ABSOLUTE, FileRef
from tensorgate.gateway.contract.operator import Op
from tensorgate.gateway.contract.registries import Registries
from tensorgate.gateway.contract.tensor import BYTES, NOTHING, TensorSpec
from tensorgate.gateway.contract.upstream import Await
from tensorgate.gateway.crossing.messages import ModelProgram
from tensorgate.gateway.crossing.model_messages import StartModel
from tensorgate.gateway.models.catalog import Validate
from tensorgate.gateway.models.text_steps import text_inputs, text_steps
from tensorgate.gateway.models.verification import verified_place, verify


def _placement(config: ModelConfig) -> tuple[str, ...]:
    return (config.device,) if isinstance(config.device, str) else config.device


def model_source(config: ModelConfig, name: str, version: int, path: Path) -> ModelSource:
    """What a backend has to know of a model, but for what else there is here."""
    member = config.path.member if config.path else ""
    inputs, outputs = config.input_specs(), config.output_specs()
    return ModelSource(
        name,
        version,
        path,
        _placement(config)[0],
        inputs,
        outputs,
        config.max_batch_size,
        config,
        config.parameters,
        member,
        padding=config.padding(),
        memory_limit_bytes=config.memory_limit_bytes,
        verified=verified_place(config.verify, path) if config.verify else None,
    )


def loader(
    kinds: Registries,
    resolve: Resolve,
    on_loop: Await | None = None,
    threads: int = 0,
    processes: ModelProcesses | None = None,
    ops: Mapping[str, FileRef] = NOTHING,
) -> Callable[[ModelConfig, str, int, Path], Computation]:
    """How the repository gets a computation: the named backend, with the named operators around it.

    `resolve` is for backends that call other models, `on_loop` for those that have connections; `threads` of the host
    are for each model, `processes` for those that have their own, `ops` the files of operators of the user's own.
    """

    def load(config: ModelConfig, name: str, version: int, path: Path) -> Computation:
        source = replace(
            model_source(config, name, version, path),
            resolve=resolve,
            clients=kinds.client,
            on_loop=on_loop,
            threads=threads,
        )
        kind = kinds.backends[config.backend]
        if (config.process == "own" or kind.needs_own_process) and processes is not None:
            check_process(config, kind)
            return processes.load(
                kind,
                source,
                config.instances,
                _placement(config),
                StartModel(program_of(config, source, ops), config.max_memory_bytes or 0),
                pinned=config.sequences is not None,
            )
        source, before, after = operators(kinds, config, source)
        return pipelines.load(kind, source, config.instances, before, after, _placement(config))

    return load


class DescribedModel(NamedTuple):
    """A version that is not loaded, as callers would see it, and a computation with its tensors that runs nothing."""

    model: Described
    computation: Computation


def described(kinds: Registries, config: ModelConfig, source: ModelSource) -> DescribedModel | None:
    """What a model's file and declarations tell, its operators included; None where only a load would. In a thread.
    Raises Misfit, ValueError, ImportError, OSError as a load would.
    """
    check_process(config, kinds.backends[config.backend])
    source, before, after = operators(kinds, config, source)
    own = kinds.backends[config.backend].describe(source)
    if own is None:
        return None
    if own.as_requests and (before or after):
        raise Misfit(("preprocess" if before else "postprocess",), NO_OPERATORS)
    source = with_rows(source, own.max_batch_size)
    inputs, required = input_specs(source, own, before)
    outputs = output_specs(source, own, after)
    seen = Described(
        tuple(inputs.values()), tuple(outputs.values()), own.max_batch_size, own.decoupled, platform=own.platform
    )
    executor: Any = own  # has all that model_spec reads of an executor
    computation = Computation(
        (executor,), seen.inputs, seen.outputs, tuple(required.values()), seen.max_batch_size, own.platform, "cpu"
    )
    return DescribedModel(seen, computation)


def operators(kinds: Registries, config: ModelConfig, source: ModelSource) -> tuple[ModelSource, list[Op], list[Op]]:
    """What goes before a model and behind it: the steps of its entry, or those that its section `text` stands for; and
    the source with what callers send then. Raises Misfit, and what describing its file does.
    """
    before = make_ops(kinds.ops, config.preprocess, "preprocess")
    after = make_ops(kinds.ops, config.postprocess, "postprocess")
    text = config.text
    if text is None or text.pooling is None:
        return source, before, after
    if before or after:
        raise Misfit(("text", "pooling"), "pooling stands for preprocess and postprocess, and there are such")
    described = kinds.backends[config.backend].describe(replace(source, inputs=(), outputs=()))
    if described is None:
        raise Misfit(("text", "pooling"), "the model does not say its tensors before it is loaded; declare its inputs")
    if described.as_requests:
        raise Misfit(("text", "pooling"), NO_OPERATORS)
    try:
        steps = text_steps(text, described)
        made = [[kinds.ops[each["op"]].options.model_validate(each) for each in some] for some in steps]
        ops = [[kinds.ops[each.op].make(each) for each in some] for some in made]  # type: ignore[attr-defined]
    except (ValueError, ImportError, OSError) as error:
        raise Misfit(("text", "pooling"), str(error)) from None
    sent = source.inputs or tuple(TensorSpec(name, BYTES, (-1,)) for name in text_inputs(text))
    return replace(source, inputs=sent), ops[0], ops[1]


def check_process(config: ModelConfig, kind: BackendKind) -> None:
    """Raises Misfit where a model cannot compute in a process of its own."""
    if config.process == "own" and not kind.own_process:
        raise Misfit(
            ("process",),
            f"a model of the backend {config.backend} computes nothing by itself and has no process of its own; take "
            "the key out here, and put it to the models behind it",
        )


def program_of(config: ModelConfig, source: ModelSource, ops: Mapping[str, FileRef] = NOTHING) -> ModelProgram:
    """What another process loads: the same configuration, with absolute paths. `ops` are the user's own operators."""
    steps = {step.op for step in (*config.preprocess, *config.postprocess)}
    return ModelProgram(
        source.name,
        source.version,
        str(source.path),
        source.device,
        source.threads,
        config.model_dump_json(exclude_unset=True, context=ABSOLUTE),
        tuple([(name, str(file.path), file.member) for name, file in ops.items() if name in steps]),
    )


def load_program(
    kinds: Registries, validate: Validate, program: ModelProgram, resolve: Resolve, on_loop: Await
) -> Computation:
    """One instance, loaded in this process; call it in a thread. `validate` is of these kinds. Raises as a backend
    does, and ValueError.
    """
    if program.ops and kinds.load_op is not None:
        own = {name: kinds.load_op(name, Path(file), member) for name, file, member in program.ops}
        kinds = replace(kinds, ops={**kinds.ops, **own})
        validate = model_validator(kinds)
    config = validate(json.loads(program.configuration), Path("/"))
    path = Path(program.path)
    verified = verify(config.verify, program.version, path) if config.verify else None
    source = replace(
        model_source(config, program.name, program.version, path),
        device=program.device,
        resolve=resolve,
        threads=program.threads,
        on_loop=on_loop,
    )
    source, before, after = operators(kinds, config, source)
    computation = pipelines.load(kinds.backends[config.backend], source, 1, before, after)
    if verified is not None:
        verified.check_unchanged()
    return computation
