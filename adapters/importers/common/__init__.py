"""What the readers of other servers' configurations share: they are text forms of protobuf messages.

source.py    a text file -> a message that knows its lines     places.py   where each key stands
document.py  the models that were read -> a YAML file of the gateway, for people
entries.py   what all of them say of models
"""

from tensorgate.adapters.importers.common.document import Imported, Server, document, flow, one_line
from tensorgate.adapters.importers.common.entries import NEEDS_TENSORFLOW, NO_BOUND, is_version
from tensorgate.adapters.importers.common.source import Note, Source, parse_text, printable, read_text

__all__ = [
    "NEEDS_TENSORFLOW", "NO_BOUND", "Imported", "Note", "Server", "Source", "document", "flow", "is_version",
    "one_line", "parse_text", "printable", "read_text",
]  # fmt: skip
