"""Language models that generate text, by ONNX Runtime GenAI: a folder with genai_config.json, ONNX files and
tokenizer.json.

backend.py   the backend (options.py: what YAML may say)  request.py     a request -> prompt and how to go on from it
generation.py  one text as it grows                       generators.py  who makes the tokens, of all texts
library.py   onnxruntime_genai itself, if it is there
"""

from tensorgate.backends.genai.backend import KIND

__all__ = ["KIND"]
