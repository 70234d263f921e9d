"""Two servers of the same world, one of which takes no shortcut, and a third that both ask for their remote models.

Every request goes to both, alone, and then with others at once. Their answers have to be the same bytes, alone or not,
and what they say has to be the model's truth. Shortcuts are looked up when a process starts, so these are processes,
and no forks of one that has the gateway loaded already.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import yaml
from asks import FORMS, able_forms, behind, encode, expected, make_ask, same_arrays
from forks import ROOT
from form import Ask, Unknown
from serving import DOOR_OPTIONS, Gateway
from tfs_forms import example_answers, example_truth
from truth import Model, Refused
from wire import Grpc, Http, Message, NoAnswer, Reply
from worlds import KEYS, World, configuration, write_world

VARIABLE: Final = "TENSORGATE_PLAIN"
CREDENTIALS: Final = tuple(("authorization", f"Bearer {key}") for key in KEYS.values())
SHOWN: Final = 1500
TRIES: Final = 3


class Difference(AssertionError):
    """Two ways, two answers; or an answer that is not the model's."""


@contextmanager
def server(file: Path, name: str, plain: str = "", options: Sequence[str] = ()) -> Iterator[Gateway]:
    """`tensorgate serve`, without these shortcuts."""
    log = file.with_name(f"{name}.log")
    environment = {**os.environ, VARIABLE: plain}
    if not plain:
        del environment[VARIABLE]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tensorgate", "serve", *options, str(file)],
            cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    gateway = Gateway(process, log)
    try:
        yield gateway
    finally:
        process.kill()
        process.wait()


@contextmanager
def rig(world: World, folder: Path, plain: str = "all") -> Iterator[Rig]:
    """All three, ready. `plain`: what the plain one goes without."""
    write_world(world, folder)
    with ExitStack() as stack:
        upper = folder / "upstream.yaml"
        upper.write_text(configuration(world, None))
        third = stack.enter_context(server(upper, "upstream"))
        third.wait_until_ready()
        file = folder / "gateway.yaml"
        addresses = {"http": f"127.0.0.1:{third.port}", "grpc": f"127.0.0.1:{third.grpc_port}"}
        file.write_text(configuration(world, addresses))
        short = server(file, "short", options=DOOR_OPTIONS)  # the plain one has no doors
        servers = [stack.enter_context(server(file, "plain", plain)), stack.enter_context(short)]
        for each in servers:
            each.wait_until_ready()
        made = Rig(world, file, servers)
        try:
            yield made
        finally:
            made.close()


class Rig:
    """`asked` and `judged` count requests and those whose truth is known."""

    def __init__(self, world: World, file: Path, servers: Sequence[Gateway]) -> None:
        self.world = world
        self.servers = servers
        self.asked = 0
        self.judged = 0
        self._found: dict[str, Difference] = {}
        self._entries = yaml.safe_load(file.read_text())
        self._runner = asyncio.Runner()
        self._plain, self._short = (Clients(each) for each in servers)

    def close(self) -> None:
        self._runner.run(self._plain.close())
        self._runner.run(self._short.close())
        self._runner.close()

    def judge(self, asks: Sequence[Ask], burst: int = 32) -> None:
        """Each alone, and then all of them, `burst` at once. Raises Difference."""
        self._runner.run(self._judge(asks, burst))

    def judge_callers(self, seeds: Iterable[int]) -> None:
        """Callers one after the other and some at once, by what tells them who they are. Raises Difference."""
        model = self.world.models["whoami"]
        forms = [name for name, form in FORMS.items() if name in able_forms(model) and form.transport == "grpc"]
        forms = [name for name in forms if FORMS[name].dialect != "grps"]
        for seed in seeds:
            source = random.Random(seed)
            asks = [
                make_ask(self.world.models, model, source.choice(forms), source.randrange(1 << 30)) for _ in range(4)
            ]
            # The same words but for the credentials: what a cache of header blocks would know again.
            self.judge([replace(ask, version="", timeout_s=None, genuine=False) for ask in asks])

    def compare(self, messages: Iterable[Message]) -> None:
        """What has no truth of its own. Raises Difference."""
        for message in messages:
            plain, short = self._runner.run(self._both(message))
            if plain != short:
                raise Difference(f"the plain way and the shortcuts differ\n  {message}\n  {plain}\n  {short}")

    def check_mirrors(self) -> None:
        """A mirror to the same model sees equal answers. Raises Difference."""
        for gateway in self.servers:
            told = gateway.metrics()
            for result in ("different", "error"):
                count = told.total("tensorgate_shadow_requests_total", result=result)
                if count:
                    raise Difference(f"{count:.0f} mirrored requests: {result}\n{gateway.said[-SHOWN:]}")

    def judge_burst(self, asks: Sequence[Ask]) -> None:
        """`judge`, and what is needed to see a difference again; of the same requests it is told once more without
        asking, for chance may have had a part in it. Raises Difference.
        """
        if (known := self._found.get(repr(asks))) is not None:
            raise known
        try:
            self.judge(asks)
        except Difference as error:
            self._found[repr(asks)] = found = self._reduced(asks, error)
            raise found from None

    def _reduced(self, asks: Sequence[Ask], error: Difference) -> Difference:
        """The same of fewer requests, as far as chance lets it be seen again within some rounds."""
        asks = list(asks)
        size = len(asks) // 2
        while size and len(asks) > 1:
            for start in range(0, len(asks), size):
                fewer = asks[:start] + asks[start + size :]
                found = self._again(fewer)
                if found is not None:
                    asks, error = fewer, found
                    break
            else:
                size //= 2
        return Difference(f"{error}\n  among {len(asks)}:\n    " + "\n    ".join(map(str, asks)))

    def _again(self, asks: Sequence[Ask]) -> Difference | None:
        for _ in range(TRIES):
            try:
                self.judge(asks)
            except Difference as error:
                return error
        return None

    async def _judge(self, asks: Sequence[Ask], burst: int) -> None:
        messages = [encode(ask) for ask in asks]
        alone = []
        for ask, message in zip(asks, messages, strict=True):
            plain, short = await self._both(message)
            self.asked += 1
            if plain != short:
                raise self._told("alone, the plain way and the shortcuts differ", ask, message, plain, short)
            self._check(ask, message, short)
            alone.append(short)
        if len(asks) < 2:
            return
        for start in range(0, len(asks), burst):
            some = slice(start, start + burst)
            for name, clients in (("plain", self._plain), ("short", self._short)):
                found = await asyncio.gather(*[clients.ask(message) for message in messages[some]])
                for ask, message, before, now in zip(asks[some], messages[some], alone[some], found, strict=True):
                    if before != now and not self._is_company_felt(ask):
                        why = f"{name}, alone and among {len(messages[some])} others"
                        raise self._told(why, ask, message, before, now)

    def _is_company_felt(self, ask: Ask) -> bool:
        """Inputs of different lengths may be too much for a model whose inputs are filled up to the longest of a batch,
        each for itself; beside others both may come out as long.
        """
        return bool(ask.spoil) and behind(self.world.models, ask.model).ragged

    async def _both(self, message: Message) -> tuple[Reply | str, Reply | str]:
        return await asyncio.gather(self._plain.ask(message), self._short.ask(message))

    def _check(self, ask: Ask, message: Message, reply: Reply | str) -> None:
        """Whether that is the model's answer."""
        if isinstance(reply, str):
            if ask.spoil:
                return
            raise self._told("no answer", ask, message, reply)
        try:
            wrong = self._wrong(ask, reply)
        except Unknown:
            return
        except (Refused, AssertionError, KeyError, ValueError, TypeError, IndexError, StopIteration) as error:
            wrong = f"cannot be read: {error!r}"
        self.judged += 1
        if wrong:
            raise self._told(wrong, ask, message, reply)

    def _wrong(self, ask: Ask, reply: Reply) -> str:
        """In what way, "" in none. Raises Unknown."""
        models = self.world.models
        if ask.form.startswith("tfs example"):
            if ask.spoil:
                raise Unknown
            told = example_answers(ask, reply)
            wrong = [each for each in told if not _are_equal(each[1], example_truth(models, ask, each[0]))]
            return f"{wrong[0][0]} is {wrong[0][1]}" if wrong else ""
        form = FORMS[ask.form]
        truth: Any = None
        refused: Refused | None = None
        try:
            truth = expected(models, ask)
        except Refused as error:
            refused, truth = error, error.answers
        try:
            found: Any = form.decode(ask, reply)
        except Refused as error:
            if refused is None:
                return f"refused ({error}), and the truth is {truth}"
            found = error.answers
        else:
            if refused is not None:
                return f"answered, and it should have been refused ({refused}): {found}"
        if not form.streams:
            truth = truth if refused is None else []
        if len(found) != len(truth) or not all(map(same_arrays, found, truth, [form] * len(truth))):
            return f"the truth is {truth}, and not {found}"
        return ""

    def _told(self, why: str, ask: Ask, message: Message, *replies: Any) -> Difference:
        """All that is needed to see it again."""
        lines = [f"{why}\n  world {self.world.seed}, {ask}", f"  {_cut(str(message))}"]
        lines += [f"  {name}: {_cut(str(reply))}" for name, reply in zip(("first ", "second"), replies, strict=False)]
        lines += [f"  {name}: {self._entry(name)}" for name in self._family(ask.model)]
        return Difference("\n".join(lines))

    def _entry(self, name: str) -> Any:
        return self._entries["models"].get(name) or self._entries.get("routes", {}).get(name)

    def _family(self, model: Model) -> list[str]:
        behind = [model.behind] if model.behind else []
        return [model.name, *behind, *[step.model for step in model.steps]]


def _are_equal(found: Any, truth: Any) -> bool:
    """Lists of lists of numbers and labels; NaN is NaN."""
    if isinstance(found, (list, tuple)) and isinstance(truth, (list, tuple)):
        return len(found) == len(truth) and all(map(_are_equal, found, truth))
    return bool(found == truth or (found != found and truth != truth))


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}… ({len(text)} characters)"


class Clients:
    """Everybody who asks one server: connections that stay open."""

    def __init__(self, gateway: Gateway) -> None:
        self._http = Http(gateway.port)
        self._grpc = Grpc(gateway.grpc_port, CREDENTIALS)

    async def ask(self, message: Message) -> Reply | str:
        """The answer as it is compared, or why there was none."""
        client: Any = self._http if message.transport == "http" else self._grpc
        try:
            return comparable(await client.ask(message))
        except NoAnswer as error:
            return str(error)

    async def close(self) -> None:
        self._http.close()
        await self._grpc.close()


IGNORED: Final[Mapping[str, str]] = {"date": "the clock's", "request-id": "each answer's own"}
"""Headers that are not compared, and why. Nor is the order of those that have different names: it means nothing."""


_COPY: Final = re.compile(rb"(?<=request\(s\) for model ')(\w+)_\d+(?=')")
"""What Triton's python models say of an error names the copy that it came to: whichever had time."""


_MADE: Final = re.compile(rb"""(?<=id":")(cmpl-|chatcmpl-|msg_|req_)[0-9a-f]{24}(?=")|(?<="created":)\d+""")
"""What answers of texts are called, and when they were made."""


def _unmade(found: re.Match[bytes]) -> bytes:
    return (found[1] or b"") + b"0"


def comparable(reply: Reply) -> Reply:
    """Without what two servers cannot have in common."""
    parts = tuple(_MADE.sub(_unmade, _COPY.sub(rb"\1_N", part)) for part in reply.parts)
    return replace(reply, heads=tuple(_without(head) for head in reply.heads), parts=parts)


def _without(head: Any) -> Any:
    if isinstance(head, str):
        return head
    told = ((name, _COPY.sub(rb"\1_N", value.encode()).decode()) for name, value in head if name.lower() not in IGNORED)
    return tuple(sorted(told))
