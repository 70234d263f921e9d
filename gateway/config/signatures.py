"""Signatures in YAML: named views of a model, for TensorFlow Serving's callers."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from tensorgate.gateway.config.values import Section

REGRESSION: Final = "outputs"
"""What TensorFlow Serving's clients call the output of a regression."""


class SignatureConfig(Section):
    """A named view of a model, for TensorFlow Serving's callers. Those of classify and regress send tf.Examples."""

    method: Literal["predict", "classify", "regress"] = "predict"
    """What the signature is for."""
    inputs: dict[str, str] = Field(default_factory=dict)
    """The caller's name of an input, with classify and regress a feature of Examples -> the model's input; empty is
    all, by their own names."""
    examples: str | None = Field(default=None, min_length=1)
    """With classify and regress, in place of inputs: the model's input that takes serialized Examples."""
    outputs: dict[str, str] = Field(default_factory=dict)
    """The caller's name of an output -> the model's; empty is all, by their own names. With regress: {outputs: NAME},
    which a model of one output does not need."""
    scores: str | None = Field(default=None, min_length=1)
    """With classify, the FP32 output that has the scores of classes."""
    classes: str | None = Field(default=None, min_length=1)
    """With classify, the BYTES output that has the names of classes; null: those in class_labels of the scores."""

    @field_validator("examples")
    @classmethod
    def _examples_are_all(cls, examples: str | None, info: ValidationInfo) -> str | None:
        if examples is not None and info.data.get("method") == "predict":
            raise ValueError("only classify and regress take examples; a predict signature names the input in inputs")
        if examples is not None and info.data.get("inputs"):
            raise ValueError("a signature has inputs or examples, not both")
        return examples

    @field_validator("outputs")
    @classmethod
    def _outputs_fit_the_method(cls, outputs: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        method = info.data.get("method")
        if outputs and method == "classify":
            raise ValueError("a classify signature names its outputs in scores and classes")
        if outputs and method == "regress" and outputs.keys() != {REGRESSION}:
            raise ValueError(f"a regress signature has one output, {{{REGRESSION}: NAME}}")
        return outputs

    @field_validator("scores", "classes")
    @classmethod
    def _only_of_classes(cls, output: str | None, info: ValidationInfo) -> str | None:
        if output is not None and info.data.get("method") in ("predict", "regress"):
            raise ValueError("only a classify signature has scores and classes")
        return output

    @model_validator(mode="after")
    def _classes_are_told(self) -> Any:
        if self.method == "classify" and self.scores is None and self.classes is None:
            raise ValueError("a classify signature needs scores, or classes, or both")
        return self
