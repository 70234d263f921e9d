"""What passes through here is in `service.py`; what it is made of is in the rooms, each importing only those before it.

contract    what everybody speaks                   wire         protocols without sockets
telemetry   what everybody writes into              config       YAML -> frozen Config
engine      one loaded version: queue, batches      models       which are configured, loaded, serving
security    who may ask for what                    routing      which model answers
stores      models that lie on other machines
monitoring  who reads telemetry                     service.py   decode, answer, encode: the one way in
transport   sockets: HTTP, gRPC, TLS                page         the operator's page
app.py      puts all of it together                 cli          the command line
local_engine.py   models and routing behind contract.engine, all that service, monitoring and page know of them
"""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
"""ONNX Runtime 1.31 and later looks up a collector of Microsoft's and writes below HOME's cache, unless this stands in
the environment before it is imported the first time, by us or by a model of a user's. Its disable_telemetry_events()
comes too late."""
