"""Asks a running server what `asked` has, and writes its answers: how answers.json came from a real Triton.

python tests/system/triton/record.py build FOLDER        # the model repository, for the server to serve
python tests/system/triton/record.py ask PORT FILE       # the server's answers
"""

from __future__ import annotations

import http.client
import json
import sys
from pathlib import Path
from typing import Any

from asked import LENGTH, Ask, everything
from repository import build

ANSWERS_WITHIN_S = 10.0


def ask(port: int, one: Ask, repository: str = "") -> dict[str, Any] | None:
    """Status and body, and of a body with binary tensors the length of its JSON; None if there is no answer."""
    body = one.body if one.body is None or isinstance(one.body, bytes) else json.dumps(one.body).encode()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWERS_WITHIN_S)
    try:
        connection.request(one.method, one.path, body, one.headers)
        reply = connection.getresponse()
        text = reply.read().decode("latin1")
    except TimeoutError:
        return None
    finally:
        connection.close()
    answer: dict[str, Any] = {
        "status": reply.status,
        "body": text.replace(repository, "REPOSITORY") if repository else text,
    }
    if reply.headers.get("Content-Type") == "application/octet-stream":
        answer["length"] = reply.headers.get(LENGTH)
    return answer


def record(port: int, repository: str = "") -> dict[str, Any]:
    answers = {one.name: ask(port, one, repository) for one in everything()}
    return {name: answer for name, answer in answers.items() if answer is not None}


if __name__ == "__main__":
    verb, *arguments = sys.argv[1:]
    if verb == "build":
        build(Path(arguments[0]))
    else:
        answers = record(int(arguments[0]), *arguments[2:])
        Path(arguments[1]).write_text(json.dumps(answers, indent=1) + "\n")
