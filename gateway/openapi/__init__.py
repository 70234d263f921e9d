"""The HTTP API described: /openapi.json for programs, /docs for people.

documents.py   what the dialects say of their addresses -> documents of OpenAPI 3.1
address.py     /openapi.json, which every port that speaks a dialect has
page.py        /docs, one self-contained HTML file that reads /openapi.json

A dialect's own address of a document, such as V2's /v2/models/{model}/openapi.json, is the dialect's; it asks the same
question (`questions.ApiDocument`), which `documents` answers.
"""
