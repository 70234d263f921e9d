"""tritonserver's command line -> the sections of a YAML file that stand before the models.

    line = read_command_line("tritonserver --model-repository=/models --model-control-mode explicit")
    line.repositories   # where the models lie
    note_flags(line)    # what became of each flag is in line.notes
    sections(line, [Path("/models")], relative_to)

    flags.py     every flag of the original: its type, what becomes of it here, and why
    server.py    flags -> lines of YAML; without a command line, what it could have had, in comments

Source: Triton's command_line_parser.cc.
"""

from tensorgate.adapters.importers.triton_command_line.flags import (
    TritonCommandLine,
    note_flags,
    read_command_line,
    table,
)
from tensorgate.adapters.importers.triton_command_line.server import offers, sections

__all__ = ["TritonCommandLine", "note_flags", "offers", "read_command_line", "sections", "table"]
