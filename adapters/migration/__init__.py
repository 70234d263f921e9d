"""What the readers of other servers' configurations share: they are text forms of protobuf messages.

source.py    a text file -> a message that knows its lines     places.py  where each key stands
document.py  the models that were read -> a YAML file of the gateway, for people
"""

from adapters.migration.document import Imported, document, flow, one_line
from adapters.migration.source import Note, Source, parse_text, printable, read_text

__all__ = ["Imported", "Note", "Source", "document", "flow", "one_line", "parse_text", "printable", "read_text"]
