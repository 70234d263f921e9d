"""One front door for inference clients that speak different languages.

For models and operators of yours, and for programs that run a gateway inside themselves:

    from tensorgate import InvalidArgument, ModelContext, ModelRequest, Server, TensorSpec

A model raises one of the errors here to say what went wrong: its text reaches the caller as it is, with the status that
each dialect has for the kind. Whatever else a model raises is `ModelFailed` with its last line.

Each name is imported when it is first asked for: `import tensorgate` itself imports nothing.
"""

__version__ = "0.1.0"

TYPE_CHECKING = False  # typing's own would have to be imported
if TYPE_CHECKING:
    from tensorgate.backends.python.backend import ModelContext as ModelContext
    from tensorgate.backends.python.backend import ModelRequest as ModelRequest
    from tensorgate.backends.python.backend import PythonModel as PythonModel
    from tensorgate.gateway.config import ConfigError as ConfigError
    from tensorgate.gateway.contract.errors import AlreadyExists as AlreadyExists
    from tensorgate.gateway.contract.errors import Cancelled as Cancelled
    from tensorgate.gateway.contract.errors import Exhausted as Exhausted
    from tensorgate.gateway.contract.errors import GatewayError as GatewayError
    from tensorgate.gateway.contract.errors import InvalidArgument as InvalidArgument
    from tensorgate.gateway.contract.errors import ModelFailed as ModelFailed
    from tensorgate.gateway.contract.errors import NotFound as NotFound
    from tensorgate.gateway.contract.errors import PreconditionFailed as PreconditionFailed
    from tensorgate.gateway.contract.errors import TimedOut as TimedOut
    from tensorgate.gateway.contract.errors import Unavailable as Unavailable
    from tensorgate.gateway.contract.errors import Unknown as Unknown
    from tensorgate.gateway.contract.errors import Unsupported as Unsupported
    from tensorgate.gateway.contract.operator import Op as Op
    from tensorgate.gateway.contract.options import Options as Options
    from tensorgate.gateway.contract.tensor import TensorSpec as TensorSpec
    from tensorgate.server import Server as Server

_MODULES = {
    "backends.python.backend": (
        "ModelContext",
        "ModelRequest",
        "PythonModel",
    ),
    "gateway.config": ("ConfigError",),
    "gateway.contract.errors": (
        "AlreadyExists",
        "Cancelled",
        "Exhausted",
        "GatewayError",
        "InvalidArgument",
        "ModelFailed",
        "NotFound",
        "PreconditionFailed",
        "TimedOut",
        "Unavailable",
        "Unknown",
        "Unsupported",
    ),
    "gateway.contract.operator": ("Op",),
    "gateway.contract.options": ("Options",),
    "gateway.contract.tensor": ("TensorSpec",),
    "server": ("Server",),
}


def __getattr__(name: str) -> object:
    for module, names in _MODULES.items():
        if name in names:
            from importlib import import_module

            value: object = getattr(import_module(f"tensorgate.{module}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'tensorgate' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [name for names in _MODULES.values() for name in names]
