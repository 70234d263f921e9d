"""What each model holds that was loaded on demand, and which of them leave first where memory is short.

A model is worth what it would cost to have it again: the time that it takes to load, for each byte that it holds, the
sooner it is likely to be asked for, which is as soon as it was asked for last. The least valuable leaves first. It
stays for some time in any case, in proportion to what its load has cost: so that models that together are too large
take turns, and do not spend all of their time on loading.
Source: the method of Cao and Irani, 1997 (GreedyDual-Size), with the time since the last use as what it ages by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

STAYS: Final = 10.0
"""So many times as long as it took to load, a model stays at least."""
MAX_STAY_S: Final = 5.0
_MIN_LOAD_S: Final = 1e-3
_MIN_AGE_S: Final = 1e-3
_REMEMBERED: Final = 100_000


@dataclass(slots=True)
class Resident:
    """A model in memory. `holds`: device -> bytes, `load_seconds` what its last load took, `since` when that was over,
    `used` when it was last asked for, in seconds of time.monotonic(). `stays`: it is pinned. `guessed_on`: what it
    holds could not be measured, and is guessed, on that device, by its `file_bytes` and what others of its `kind` hold.
    """

    name: str
    holds: Mapping[str, int]
    load_seconds: float
    since: float
    used: float
    stays: bool = False
    kind: str = ""
    file_bytes: int = 0
    guessed_on: str = ""

    def value(self, now: float, devices: Iterable[str]) -> float:
        """Seconds that its next load would take, for each byte on these devices and second since it was used."""
        nbytes = max(1, sum([self.holds.get(device, 0) for device in devices]))
        return max(self.load_seconds, _MIN_LOAD_S) / (max(now - self.used, _MIN_AGE_S) * nbytes)

    def may_leave(self, now: float) -> bool:
        """Whether it has been here for as long as its load was worth."""
        return not self.stays and now - self.since >= min(STAYS * self.load_seconds, MAX_STAY_S)


@dataclass(slots=True)
class Ledger:
    """All that is held, and what those will hold that are being loaded. `bounds`: device -> the most bytes."""

    bounds: Mapping[str, int]
    residents: dict[str, Resident] = field(default_factory=dict)
    reserved: dict[str, Mapping[str, int]] = field(default_factory=dict)
    """Of models that are being loaded, as they are expected to be."""
    _known: dict[str, Resident] = field(default_factory=dict)
    """What was measured of models that have left, the oldest first."""
    _ratios: dict[str, float] = field(default_factory=dict)
    """How many bytes models of a kind hold for each byte of their files, lately."""

    def held(self, device: str) -> int:
        """The bytes there of all residents."""
        return sum([each.holds.get(device, 0) for each in self.residents.values()])

    def lacking(self, needs: Mapping[str, int]) -> dict[str, int]:
        """device -> the bytes that have to be freed there before a model fits that needs so many."""
        found = {}
        for device, most in self.bounds.items():
            wanted = needs.get(device, 0)
            promised = sum([each.get(device, 0) for each in self.reserved.values()])
            lack = self.held(device) + promised + wanted - most
            if wanted and lack > 0:
                found[device] = lack
        return found

    def excess(self) -> dict[str, int]:
        """device -> the bytes that are held there beyond its bound."""
        over = {device: self.held(device) - most for device, most in self.bounds.items()}
        return {device: nbytes for device, nbytes in over.items() if nbytes > 0}

    def fits(self, needs: Mapping[str, int]) -> bool:
        """Whether a model that needs so many bytes could be held at all, beside those that stay."""
        stay = [each for each in self.residents.values() if each.stays]
        return all(
            needs.get(device, 0) + sum([each.holds.get(device, 0) for each in stay]) <= most
            for device, most in self.bounds.items()
        )

    def to_leave(
        self, lacking: Mapping[str, int], now: float, may_leave: Callable[[Resident], bool]
    ) -> Sequence[Resident]:
        """The least valuable residents that free so many bytes together; none if all of them would not."""
        left = dict(lacking)
        chosen = []
        for each in self._least_valuable(left, now, may_leave):
            if not any(each.holds.get(device, 0) for device, nbytes in left.items() if nbytes > 0):
                continue
            chosen.append(each)
            left = {device: nbytes - each.holds.get(device, 0) for device, nbytes in left.items()}
            if all(nbytes <= 0 for nbytes in left.values()):
                return chosen
        return ()

    def _least_valuable(
        self, devices: Iterable[str], now: float, may_leave: Callable[[Resident], bool]
    ) -> Iterator[Resident]:
        able = [each for each in self.residents.values() if each.may_leave(now) and may_leave(each)]
        return iter(sorted(able, key=lambda each: each.value(now, devices)))

    def expected(self, name: str, kind: str, file_bytes: int, device: str) -> Mapping[str, int]:
        """What a model will hold: what it held before, else what models of its kind and size do."""
        known = self._known.get(name)
        if known is not None and not known.guessed_on:
            return known.holds
        return {device: int(file_bytes * self._ratios.get(kind, 1.0))}

    def load_seconds(self, name: str) -> float:
        """How long the model's load is likely to take; of one that never was loaded, as long as others'."""
        known = self._known.get(name) or self.residents.get(name)
        if known is not None:
            return known.load_seconds
        some = [each.load_seconds for each in self.residents.values()]
        return sum(some) / len(some) if some else 1.0

    def add(self, resident: Resident) -> None:
        """A model has been loaded. What was measured of it says more of those that were guessed."""
        self.residents[resident.name] = resident
        self._known.pop(resident.name, None)
        kind = resident.kind
        if resident.guessed_on or not resident.file_bytes:
            return
        ratio = sum(resident.holds.values()) / resident.file_bytes
        before = self._ratios.get(kind, ratio)
        self._ratios[kind] = ratio = before + (ratio - before) / 8
        for each in self.residents.values():
            if each.guessed_on and each.kind == kind:
                each.holds = {each.guessed_on: int(each.file_bytes * ratio)}

    def remove(self, name: str) -> None:
        """A model has left. What it held is remembered, of as many models as one may come back to."""
        resident = self.residents.pop(name, None)
        if resident is not None:
            self._known[name] = resident
            if len(self._known) > _REMEMBERED:
                del self._known[next(iter(self._known))]
