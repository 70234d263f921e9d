"""A file of Kubernetes' documents -> the models and sections of its InferenceServices."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tensorgate.adapters.importers.common import Imported, ImportedServer, Note, flow, printable
from tensorgate.adapters.importers.common.tabular import TABULAR_FILE, TABULAR_TEXT
from tensorgate.adapters.importers.common.tree import Item, read_trees
from tensorgate.adapters.importers.kserve_config.predictors import FORMATS, Entries, KserveImport, read_predictor

_KIND: Final = "InferenceService"
_CLUSTER: Final = "it is the cluster's; put it on the Deployment of this server"
_IGNORED: Final = {
    "minReplicas": _CLUSTER,
    "maxReplicas": _CLUSTER,
    "scaleTarget": _CLUSTER,
    "scaleMetric": _CLUSTER,
    "scaleMetricType": _CLUSTER,
    "autoScaling": _CLUSTER,
    "deploymentStrategy": _CLUSTER,
    "labels": _CLUSTER,
    "annotations": _CLUSTER,
    "serviceAccountName": _CLUSTER,
    "nodeSelector": _CLUSTER,
    "tolerations": _CLUSTER,
    "affinity": _CLUSTER,
    "volumes": _CLUSTER,
    "imagePullSecrets": _CLUSTER,
    "logger": "access_log writes a line for each call",
    "workerSpec": "a model computes on one machine",
}
_NOT_DONE: Final = {
    "transformer": "do its work with preprocess and postprocess, or in a python model before the predictor (ensemble)",
    "explainer": "explanations are not done here; let KServe's explainer ask this server",
}
_NO_PREVIOUS: Final = (
    "is refused: the rest went to the revision before, which the file does not have; put its document before this one"
)


@dataclass(slots=True)
class _Service:
    """The models of an InferenceService, or what is wrong with it; `canary` is its share of the traffic in percent."""

    name: str
    entries: Entries = field(default_factory=dict)
    error: str = ""
    canary: int | None = None
    limits: dict[str, Any] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)


def read_services(file: Path, programs: str = "", *, trusted: bool = False) -> ImportedServer:
    """`programs` is the folder beside the YAML that gets the classes of models, "" where there is no place; `trusted`:
    their files may be programs. Raises ValueError, or OSError.
    """
    trees = [document for tree in read_trees(file) for document in _documents(tree)]
    beside = KserveImport(programs, trusted)
    services = [_service(tree, beside) for tree in trees if _is_service(tree)]
    if not services:
        raise ValueError(f"{file}: there is no {_KIND} in it")
    notes = trees[0].file.notes
    models, routes = _joined(services)
    sections = [*_sections(beside), *routes]
    texts = {f"{programs}/{TABULAR_FILE}": TABULAR_TEXT} if beside.is_tabular else {}
    return ImportedServer(sections, models, notes, skeletons=texts)


def _documents(tree: Item) -> list[Item]:
    """A document, or those of a List."""
    return [each.mapping() for each in tree.member("items").items()] if tree.member("kind").text() == "List" else [tree]


def _is_service(tree: Item) -> bool:
    kind = tree.member("kind")
    if kind.text() == _KIND:
        return True
    tree.note(f"{kind.text() or 'a document without a kind'} is ignored: it is no {_KIND}")
    return False


def _service(tree: Item, beside: KserveImport) -> _Service:
    name = tree.member("metadata").mapping().member("name").text()
    if not name:
        raise tree.wrong("an InferenceService needs metadata.name")
    spec = tree.member("spec").mapping()
    before = len(tree.file.notes)
    service = _Service(printable(name))
    try:
        for part, remedy in _NOT_DONE.items():
            if spec.member(part).given:
                spec.member(part).note(f"is refused: {remedy}", "refused")
        predictor = spec.member("predictor").mapping()
        if not predictor.given:
            raise spec.wrong("there is no predictor")
        service.entries = read_predictor(predictor, name, beside)
        service.canary = _traffic(predictor)
        service.limits = _limits(predictor)
    except (ValueError, OSError) as error:
        service.error = str(error)
    service.notes = tree.file.notes[before:]
    del tree.file.notes[before:]
    return service


def _traffic(predictor: Item) -> int | None:
    for name, reason in _IGNORED.items():
        predictor.member(name).ignore(reason)
    for name in FORMATS:
        predictor.member(name)
    percent = predictor.member("canaryTrafficPercent")
    if not percent.given:
        return None
    share = percent.number(0, 0)
    if share > 100:
        raise percent.wrong(f"found {share}, expected at most 100")
    return share


def _limits(predictor: Item) -> dict[str, Any]:
    """What a route bounds: a request's time, and how many there are."""
    seconds, running = predictor.member("timeout"), predictor.member("containerConcurrency")
    found = {"timeout_ms": seconds.number(0, 0) * 1000, "max_concurrent": running.number(0, 0)}
    for item in (seconds, running):
        if item.given:
            item.note("-> routes", "mapped")
    predictor.leftovers()
    return {key: value for key, value in found.items() if value}


def _joined(services: Sequence[_Service]) -> tuple[list[Imported], list[str]]:
    """The models under names of their own, and routes by the services' names where these are not the models'."""
    models: list[Imported] = []
    routes: dict[str, Any] = {}
    for service in {each.name: each for each in services}.values():
        previous = next((each for each in services[::-1] if each.name == service.name and each is not service), None)
        if service.error:
            models.append(Imported(service.name, None, service.notes, service.error))
            continue
        notes = list(service.notes)
        is_lone = set(service.entries) == {service.name}
        if service.canary is not None and previous is not None and not previous.error and is_lone:
            models.append(_renamed(previous, "previous"))
            models.append(_renamed(service, "canary"))
            shares = (("previous", 100 - service.canary), ("canary", service.canary))
            targets = [{"model": f"{service.name}-{role}", "weight": weight} for role, weight in shares]
            routes[service.name] = {"targets": targets} | service.limits
            continue
        if service.canary not in (None, 100):
            where = next((note for note in notes if note.line), Note("", 0, "", ""))
            notes.append(Note(where.file, 0, "canaryTrafficPercent", _NO_PREVIOUS, "refused"))
        if service.limits and is_lone:
            models.append(Imported(f"{service.name}-model", service.entries[service.name], notes))
            routes[service.name] = {"targets": [{"model": f"{service.name}-model"}]} | service.limits
            continue
        models += [
            Imported(printable(name), entry, notes if not index else ())
            for index, (name, entry) in enumerate(service.entries.items())
        ]
    return models, list(_routes(routes))


def _renamed(service: _Service, role: str) -> Imported:
    return Imported(f"{service.name}-{role}", next(iter(service.entries.values())), service.notes)


def _routes(routes: dict[str, Any]) -> Iterator[str]:
    if routes:
        yield "routes:                               # the names that callers use"
        yield from (f"  {flow(name)}: {flow(route)}" for name, route in routes.items())


def _sections(beside: KserveImport) -> Iterator[str]:
    dialects = sorted(beside.dialects)
    yield "listen:                               # the ports of KServe's containers"
    yield "  http:"
    yield f"    - {flow({'bind': '0.0.0.0:8080', 'dialects': dialects})}"
    if beside.grpc:
        yield "  grpc:"
        yield f"    - {flow({'bind': '0.0.0.0:8081', 'dialects': dialects})}"
    if beside.threads:
        yield f"cpu: {{threads: {math.ceil(beside.threads)}}}"
