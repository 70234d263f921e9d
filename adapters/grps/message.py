"""grps messages in JSON: the schema of grps.protos.v1 as readers, and the message that a JSON object makes.

Anything that does not fit refuses the whole message. Number arrays are only looked at when all arrays of the message
are known, so that its text can clear them of nesting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tensorgate.adapters.grps.fields import (
    FLOAT_MAX,
    Read,
    Schema,
    Unfit,
    array,
    base64_bytes,
    enum,
    floating,
    integer_within,
    list_of,
    map_of,
    object_of,
    read_fields,
    string,
)
from tensorgate.adapters.grps.flat import flat_array
from tensorgate.adapters.grps.tensors import BY_FIELD, MAX_DIMENSIONS, NUMBERS, Array, GrpsTensor
from tensorgate.adapters.json.cuts import marked
from tensorgate.gateway.contract.errors import InvalidArgument
from tensorgate.gateway.contract.tensor import DTYPES

DATA_FIELDS: Final = frozenset(("bin_data", "str_data", "gtensors", "ndarray", "gmap"))
"""The arms of the message's oneof."""


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def _schema(**fields: Read) -> dict[str, tuple[str, Read]]:
    """Each field under its own name and in lower camel case."""
    return {key: (name, read) for name, read in fields.items() for key in (name, _camel(name))}


_INT32: Final = DTYPES["INT32"]
_DIMENSION: Final = integer_within(DTYPES["UINT32"])
_MAX_TENSORS: Final = 4096  # no model has as many inputs; each costs microseconds to read
_STATUS_FLAGS: Final = {"UNKNOWN": 0, "SUCCESS": 1, "FAILURE": 2}
_TENSOR: Final = _schema(
    name=string, dtype=enum(NUMBERS), shape=list_of(_DIMENSION, MAX_DIMENSIONS), **dict.fromkeys(BY_FIELD, array)
)
_TENSOR["flat_double"] = ("flat_float64", array)  # what the protocol's page calls it; no schema ever had it
_MAPS: Final = _schema(
    s_s=map_of(string),
    s_b=map_of(base64_bytes),
    s_i32=map_of(integer_within(_INT32)),
    s_i64=map_of(integer_within(DTYPES["INT64"])),
    s_f=map_of(floating(FLOAT_MAX[DTYPES["FP32"]])),
    s_d=map_of(floating(FLOAT_MAX[DTYPES["FP64"]])),
)
_READERS: Final[Mapping[str, Read]] = {
    "status": object_of(_schema(code=integer_within(_INT32), msg=string, status=enum(_STATUS_FLAGS))),
    "model": string,
    "bin_data": base64_bytes,
    "str_data": string,
    "gtensors": object_of(_schema(tensors=list_of(object_of(_TENSOR), _MAX_TENSORS))),
    "ndarray": object_of({}),
    "gmap": object_of(_MAPS),
}
MESSAGE: Final[Schema] = {name: (name, read) for name, read in _READERS.items()}
"""The whole message; no camel case here, at the top."""


def message(members: Mapping[str, Any], body: bytes, arrays: Sequence[Array] = ()) -> dict[str, Any]:
    """The members of a JSON object -> the message's fields that are set; `gtensors` is a list of Tensor. `arrays` are
    those that were cut out of the body.

    Raises InvalidArgument if a value does not fit its field, or two arms of the oneof are set.
    """
    if len([key for key in DATA_FIELDS & members.keys() if members[key] is not None]) > 1:
        oneof = 'Message type "grps.protos.v1.GrpsMessage" should not have multiple "data_oneof" oneof fields.'
        raise InvalidArgument(oneof)
    try:
        fields = read_fields(members, MESSAGE)
        if "gtensors" in fields:
            tensors = enumerate(fields["gtensors"].get("tensors", []))
            fields["gtensors"] = [_tensor(each, f"tensors.[{index}]", body, arrays) for index, each in tensors]
    except Unfit as unfit:
        raise InvalidArgument(f"Failed to parse {unfit.place} field: {unfit.reason}.") from None
    return fields


def _tensor(fields: dict[str, Any], place: str, body: bytes, arrays: Sequence[Array]) -> GrpsTensor:
    flat: dict[str, Array] = {}
    for name, value in fields.items():
        if name not in BY_FIELD:
            continue
        try:
            number = marked(value) if arrays else None
            dtype = DTYPES[BY_FIELD[name].datatype]
            flat[name] = flat_array(value, dtype, body) if number is None else arrays[number]
        except Unfit as unfit:
            raise unfit.below(name).below(place).below("gtensors") from None
    return GrpsTensor(fields.get("name", ""), fields.get("dtype", 0), tuple(fields.get("shape", ())), flat)
