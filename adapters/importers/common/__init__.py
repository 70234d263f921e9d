"""What the readers of other servers' configurations share.

source.py    a text file -> a message that knows its lines     key_locations.py   where each key stands
tree.py      a file of YAML or JSON -> its values as raw text, each with its line
document.py  the models that were read -> a YAML file of the gateway, for people
location.py  where models are said to lie                      tabular.py    scikit-learn, XGBoost and LightGBM
"""

from tensorgate.adapters.importers.common.document import (
    Imported,
    ImportedServer,
    document,
    flow,
    one_line,
    relative,
)
from tensorgate.adapters.importers.common.source import (
    NO_BOUND,
    Note,
    Source,
    UsageError,
    is_version,
    needs_tensorflow,
    own_notes,
    parse_text,
    printable,
    read_text,
    versions_of,
)

__all__ = [
    "NO_BOUND",
    "Imported",
    "ImportedServer",
    "Note",
    "Source",
    "UsageError",
    "document",
    "flow",
    "is_version",
    "needs_tensorflow",
    "one_line",
    "own_notes",
    "parse_text",
    "printable",
    "read_text",
    "relative",
    "versions_of",
]  # fmt: skip
