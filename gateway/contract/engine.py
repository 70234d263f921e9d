"""What the front of the gateway knows of the models behind it: transports, dialects, the authorizer, the service.

    resolve a name     -> ModelView, with a handle
    submit a request   ModelView.handle.submit(request) -> Answers, or its `answer` where nothing else is waited for
    ask a question     Engine.ask(question) -> its answer
    follow the models  Engine.names(), Engine.is_complete(), Handle.is_ready()
    read its numbers   Engine.settle(), Engine.statistics()

In one process each of these is a function call. Views, requests, questions and answers are immutable values; what
lies behind a handle is nobody's but the engine's, so that the engine may as well be another process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias

from tensorgate.gateway.contract.call import Buffer, Call
from tensorgate.gateway.contract.canonical import InferRequest, InferResponse, ModelRef, ModelView
from tensorgate.gateway.contract.dialect import Resolve
from tensorgate.gateway.contract.memory import Regions
from tensorgate.gateway.contract.metrics import EngineStatistics

OnAnswer: TypeAlias = Callable[[InferResponse], None]

DecodeAgain: TypeAlias = Callable[[Resolve], Awaitable[InferRequest]]
"""Reads the call once more, for the model that this resolve finds."""

Infer: TypeAlias = Callable[[InferRequest, Resolve, OnAnswer | None], Awaitable[float]]
"""Submits a request and sends its answers -> seconds until the model's last. Each answer that has been sent is given to
the last argument; the resolve is for a model that was unloaded meanwhile. Raises GatewayError."""


ReadAnswer: TypeAlias = Callable[[bytes], InferResponse]
"""What an answer says that another server has given, all of it. Raises ModelFailed."""


class TakesPieces(Protocol):
    """Who sees an answer of another server pass."""

    def take(self, piece: Buffer) -> None:
        """The next piece of it, where it is a success."""
        ...


Forward: TypeAlias = Callable[[ModelView, TakesPieces | None], Awaitable[None]]
"""Has the server behind a model answer the call, and lets somebody see the answer. Raises GatewayError."""


class CallResolver(Protocol):
    """The Resolve of one call: who calls, and with which headers, may decide what a name means."""

    def __call__(self, ref: ModelRef) -> ModelView:
        """Raises ModelNotFound, LabelNotFound, or what refuses the caller this model."""
        ...

    async def infer(
        self, request: InferRequest, decode: DecodeAgain, infer: Infer, has_replied: Callable[[], bool]
    ) -> float:
        """Run an inference as the route of its view says: within its timeout and its number of concurrent requests, by
        another model if the first one cannot and nothing has been replied yet, and mirrored -> seconds that the model
        took. Raises GatewayError.
        """
        ...

    async def forward(
        self,
        view: ModelView,
        ask: Forward,
        has_replied: Callable[[], bool],
        read: ReadAnswer | None = None,
        *,
        streams: bool = False,
    ) -> ModelView | None:
        """Have another server answer the call as the route of this view says -> None; or the model that has to be asked
        in its place, by a request of tensors, if it cannot. It is mirrored where answers can be read; `streams`: they
        may come in pieces. Raises GatewayError.
        """
        ...


class StatisticsSource(Protocol):
    """Where monitoring reads what the engine has counted."""

    def settle(self) -> None:
        """Count what was only noted of requests so far. On the event loop: once a second, and before `statistics`."""
        ...

    def statistics(self) -> EngineStatistics:
        """Return all numbers as values of their own. In any thread."""
        ...


class Engine(StatisticsSource, Protocol):
    """The models, by public name. Every method belongs to the event loop, but for `resolve`, `regions` and
    `statistics`.
    """

    regions: Regions
    """The memory that callers share with the engine."""

    def resolve(self, ref: ModelRef) -> ModelView:
        """Find the version that answers under a name. In any thread. Raises ModelNotFound, LabelNotFound, MustLoad."""
        ...

    def resolver(self, call: Call) -> CallResolver | None:
        """Return what resolves for this call in particular; None where `resolve` does for all calls."""
        ...

    @property
    def discovers(self) -> bool:
        """Whether a name that nobody knows may be that of a model of another server."""
        ...

    async def discover(self, name: str) -> bool:
        """Look for a model of that name at other servers -> whether it is served now, and was not before. Raises
        Unavailable where they cannot be asked.
        """
        ...

    async def demand(self, model: str, deadline: float | None) -> None:
        """Wait until a model is loaded for which a resolve has raised MustLoad. Raises Unavailable, which says when to
        ask again, and DeadlineExceeded.
        """
        ...

    def is_public(self, name: str) -> bool:
        """Whether a model or route has this name, loaded or not."""
        ...

    def is_loadable(self, model: str) -> bool:
        """Whether a model that is not loaded would be if somebody asked for it now: its last load has not failed."""
        ...

    async def described(self, model: str) -> ModelView | None:
        """Return a model that is not loaded as its file describes it, to be looked at and not to be asked; None where
        only its load would tell.
        """
        ...

    def named(self, call: Call) -> tuple[str, int | str]:
        """Say what a call that could not be read is about -> a public name and a version, "" for what is not known."""
        ...

    def check_forward(self, call: Call, ref: ModelRef) -> None:
        """Raise MustForward where the server behind a model answers this call, which asks of that model."""
        ...

    def forwarded(self, kind: tuple[str, str], named: Callable[[], ModelRef | None]) -> ModelRef | None:
        """Return what a call names if the server behind that model answers such calls: of this dialect, over this
        transport. `named` is asked only where there is such a server for any model.
        """
        ...

    def ask(self, question: Any) -> Any:
        """Answer a question of `questions`, or return an awaitable of the answer. Raises GatewayError."""
        ...

    def names(self) -> tuple[str, ...]:
        """Every public name, loaded or not: models first, then routes."""
        ...

    def is_complete(self) -> bool:
        """Whether every version that the configuration wants is loaded."""
        ...
