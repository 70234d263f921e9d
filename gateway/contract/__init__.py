"""What everybody speaks, by who reads it: nothing else is imported here.

canonical.py   the request and the answer between a dialect and a model, and the model version they are for
tensor.py      datatypes, specifications, signatures; does an input fit?
questions.py   what can be asked besides an inference: health, metadata, statistics, load and unload …
errors/        everything that can go wrong, by chapter
call.py        a message as a transport saw it, and one for it to send
engine.py      what the front of the gateway knows of the models behind it
dialect.py     for whoever writes a dialect              upstream.py   the same from the client's side
api.py         … and describes its addresses for OpenAPI
backend.py     for whoever writes a backend              operator.py   … or an operator
metrics.py     what the core has counted, for a dialect's own names
execution.py   what a scheduler drives                   memory.py     memory that callers share
options.py     what YAML sets                            files.py      files that it names
shortcuts.py   the ways around the plain flow, by name
"""
