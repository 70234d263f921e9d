"""Roles pass through the environment, and descriptors go no further."""

import os
from pathlib import Path

from tensorgate.gateway.crossing.role import ROLE, Role


def test_a_role_is_inherited_once() -> None:
    ready, byte = os.pipe()
    text = os.memfd_create("text")
    os.write(text, "models: {é: {}}".encode())
    http, shared = os.dup(0), os.dup(0)
    for number in (byte, text, http, shared):
        os.set_inheritable(number, True)
    given = Role("door", 1, 3, 2, Path("/run/x"), shared, byte, text, [http], None, [], ["http://a:1"], {"exit": 2})
    environment = {"PATH": "/bin", **given.environment()}
    role = Role.of_environment(environment)
    assert role == given
    assert environment == {"PATH": "/bin"}
    assert not any(map(os.get_inheritable, role.inherited()))
    assert role.inherited() == (shared, byte, text, http)
    assert role.configuration() == role.configuration() == "models: {é: {}}"
    assert (role.engine_socket, role.door_socket(3)) == (Path("/run/x/engine.sock"), Path("/run/x/door-3.sock"))
    role.is_ready()
    assert os.read(ready, 10) == b"1"
    assert os.read(ready, 10) == b""


def test_without_the_variable_there_is_no_role() -> None:
    assert Role.of_environment({}) is None
    assert ROLE == "TENSORGATE_ROLE"
