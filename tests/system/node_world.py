"""ONNX's tests of operators, served: every model in one gateway, asked in every form, compared with ONNX Runtime.

    python tests/system/node_world.py        asks everything, prints the totals, and writes them to onnx_nodes.json

That file holds what the whole gave with the versions that it names; the tests compare.
"""
# ruff: noqa: T201 - a command speaks by print

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
from node_cases import Direct, NodeCase, ask_directly, close, collect, same
from node_forms import FORMS, Form, Refused

from tensorgate.backends.remote.grpc_connection import GrpcConnection
from tensorgate.backends.remote.http_connection import HttpConnection
from tensorgate.gateway.app import App, registries
from tensorgate.gateway.config import load_config
from tensorgate.gateway.contract.canonical import ModelRef, ModelView
from tensorgate.gateway.contract.errors import GatewayError

TOTALS = Path(__file__).with_name("onnx_nodes.json")
ANSWERS_WITHIN_S = 30.0
MAX_BYTES = 1 << 30


@dataclass(slots=True)
class Verdict:
    """`totals`: form -> "equal", or why not -> how many models. `refused`: why a model is not served -> which ones.
    `wrong` is everything that should not be.
    """

    totals: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    refused: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    not_as_recorded: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        return {
            "onnx": onnx.__version__,
            "onnxruntime": onnxruntime.__version__,
            "totals": {name: dict(sorted(counts.items())) for name, counts in self.totals.items()},
            "refused": dict(sorted(self.refused.items())),
            "not_as_recorded": self.not_as_recorded,
        }


class World:
    """A running gateway, in this process, and connections to it."""

    def __init__(self, app: App) -> None:
        self.app = app
        addresses = dict(address.split("://") for address in app.addresses)
        self._connections: dict[str, Any] = {
            "http": HttpConnection(addresses["http"], MAX_BYTES),
            "grpc": GrpcConnection(addresses["grpc"], MAX_BYTES),
        }

    def view(self, name: str) -> ModelView:
        return self.app.router.resolve(ModelRef(name))

    async def ask(self, form: Form, view: ModelView, case: NodeCase) -> Any:
        """The outputs by name. Raises GatewayError or Refused: the server's objection, or that of its client."""
        reply = await self._connections[form.transport].call(form.encode(view, case.inputs), ANSWERS_WITHIN_S)
        return form.decode(reply, view)

    async def close(self) -> None:
        for connection in self._connections.values():
            await connection.close()
        assert await self.app.drain()


@contextlib.asynccontextmanager
async def serve(cases: Sequence[NodeCase], folder: Path, **options: Any) -> AsyncIterator[tuple[World, dict[str, str]]]:
    """A gateway with these models, and for those that could not be loaded why."""
    defaults = {"backend": "onnx", "versions": "none", "intra_op_threads": 1} | options
    models = {case.name: {**defaults, "path": str(case.save(folder))} for case in cases}
    bind = [{"bind": "127.0.0.1:0"}]
    file = folder / "gateway.yaml"
    file.write_text(json.dumps({"models": models, "readiness": "lenient", "listen": {"http": bind, "grpc": bind}}))
    kinds = registries()
    app = App(load_config(file, kinds), kinds)
    await app.start()
    errors: dict[str, str] = {}
    await app.load(lambda report: errors.update({report.name: report.error} if report.error else {}))
    world = World(app)
    try:
        yield world, errors
    finally:
        await world.close()


async def judge(cases: Sequence[NodeCase], folder: Path) -> Verdict:
    """Ask every case in every form."""
    verdict = Verdict()
    async with serve(cases, folder) as (world, errors):
        for case in cases:
            direct = ask_directly(case)
            loads = not direct.refusal or direct.refusal.startswith("ONNX Runtime cannot run")
            if loads != (case.name not in errors):
                verdict.wrong.append(f"{case.name}: {direct.refusal or 'to be served'}, but {errors.get(case.name)}")
            elif direct.refusal:
                verdict.refused[direct.refusal].append(case.name)
            else:
                await _compare(world, case, direct, verdict)
    return verdict


async def _compare(world: World, case: NodeCase, direct: Direct, verdict: Verdict) -> None:
    if not direct.random and not all(close(array, case.recorded[name], case) for name, array in direct.outputs.items()):
        verdict.not_as_recorded.append(case.name)
    view = world.view(case.name)
    for form in FORMS.values():
        expected = form.refusal(case.inputs, direct.outputs) or "equal"
        try:
            found = _found(await world.ask(form, view, case), direct, form)
        except (GatewayError, Refused) as error:
            found = str(error) if expected == "equal" else expected
        verdict.totals[form.name][expected] += 1
        if found != expected:
            verdict.wrong.append(f"{case.name}, {form.name}: {expected} wanted, but {found}")


def _found(outputs: Any, direct: Direct, form: Form) -> str:
    if outputs.keys() != direct.outputs.keys():
        return f"outputs {list(outputs)} in place of {list(direct.outputs)}"
    for name, want in direct.outputs.items():
        got = outputs[name]
        if not (got.size or want.size or form.shows_shapes):
            got = got.reshape(want.shape)
        alike = (got.dtype, got.shape) == (want.dtype, want.shape) if direct.random else same(got, want)
        if not alike:
            return f"{name} is {got.dtype}{list(got.shape)} {got!r}, not {want.dtype}{list(want.shape)} {want!r}"[:500]
    return "equal"


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        verdict = asyncio.run(judge(collect(), Path(folder)))
    for name, counts in verdict.totals.items():
        print(f"{name:18}", *(f"{reason}: {count}" for reason, count in counts.most_common()), sep="  ")
    for reason, names in verdict.refused.items():
        print(f"not served: {reason}: {len(names)}")
    print("not as recorded, also when ONNX Runtime is called directly:", *verdict.not_as_recorded)
    print(*verdict.wrong, sep="\n")
    TOTALS.write_text(json.dumps(verdict.plain(), indent=1) + "\n")
    return bool(verdict.wrong)


if __name__ == "__main__":
    sys.exit(main())
