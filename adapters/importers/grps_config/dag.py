"""The dag of inference.yml -> the model that answers those who name none."""

from __future__ import annotations

from collections.abc import Sequence

from tensorgate.adapters.importers.common import flow
from tensorgate.adapters.importers.common.tree import Item
from tensorgate.adapters.importers.grps_config.models import Named

_REMEDY = (
    "chain them in an ensemble, of which the tensors have to be known: "
    "{{backend: ensemble, inputs: [...], outputs: [...], steps: [{steps}]}}; then grps: {{default_model: {name}}}"
)


def read_dag(tree: Item, models: Sequence[Named]) -> str:
    """What an empty name means to callers, "" if that cannot be had. Raises ValueError."""
    dag = tree.member("dag").mapping()
    if not dag.given:
        raise tree.wrong("there is no dag; grps does not start without, either")
    kind = dag.member("type").choice("sequential")
    nodes = [_node(item, models) for item in dag.member("nodes").items()]
    name = dag.member("name")
    dag.leftovers()
    if not nodes:
        raise dag.member("nodes").wrong("there are none")
    if len(nodes) > 1:
        chain = " -> ".join(each.qualified for each in nodes)
        steps = ", ".join(f"{{model: {flow(each.imported.name)}, inputs: {{...}}, outputs: {{...}}}}" for each in nodes)
        dag.note(f"is refused: {chain}: {_REMEDY.format(steps=steps, name=name.text(kind))}", "refused")
        return ""
    name.ignore("the dag is its only model")
    (model,) = nodes
    if model.imported.entry is None:
        dag.note(f"is refused: its model {model.qualified} is not imported; see there", "refused")
        return ""
    dag.note(f"-> grps.default_model: {model.qualified}", "mapped")
    return model.qualified


def _node(item: Item, models: Sequence[Named]) -> Named:
    item.mapping().member("type").choice("model")
    item.member("name").text()
    wanted = item.member("model")
    item.leftovers()
    found = next((each for each in models if each.qualified == wanted.text()), None)
    if found is None:
        raise wanted.wrong(f"there is no model {wanted.text()}; expected name-version of one above")
    return found
