from typing import Any

DEFAULT_MODELS: dict[str, Any]

def text_models(tokenizer: str) -> dict[str, Any]: ...
