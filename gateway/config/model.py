"""A model's entry: what is common to all backends, its tensors, padding, warm-up and signatures.

Queues, priorities and sequences are in `schedule`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

from pydantic import (
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from tensorgate.gateway.config.residency import ModelResidency
from tensorgate.gateway.config.schedule import PrioritiesConfig, QueueConfig, SequencesConfig
from tensorgate.gateway.config.values import MAX_VERSION, ByteSize, Placement, VersionPolicy, refuse
from tensorgate.gateway.config.verification import VerifyConfig
from tensorgate.gateway.contract.backend import Cut, Padding, RaggedInput
from tensorgate.gateway.contract.files import Existing, FileRef
from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import DTYPES, NOTHING, TensorSpec
from tensorgate.gateway.contract.text import SECTION, TextOptions

FeatureValue: TypeAlias = StrictBool | StrictInt | StrictFloat | StrictStr
"""What a feature of an Example may have, before the model's input says which of them it takes."""
REGRESSION: Final = "outputs"
"""What TensorFlow Serving's clients call the output of a regression."""


class RaggedInputConfig(Options):
    """An input whose length differs from request to request."""

    axes: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Along which axes; 0 is the batch dimension. Empty: all that vary."""
    value: float | str | None = None
    """What it is filled up with; null: 0, or empty text."""
    to_multiple_of: int = Field(default=1, ge=1, le=1 << 20)
    """Lengths are rounded up to a multiple of this."""


class CutConfig(Options):
    """An output that is as long as an input: each request gets its own length of it."""

    output: str = Field(min_length=1)
    """The output's name."""
    axis: int = Field(default=1, ge=1)
    """Along which axis."""
    to: str = Field(pattern=r"^.+\.[1-9][0-9]?$")
    """The input and its axis, ids.1 for example."""

    def cut(self) -> Cut:
        """The cut as a backend takes it, with the input split from its axis."""
        name, _, axis = self.to.rpartition(".")
        return Cut(self.output, self.axis, name, int(axis))


class RaggedConfig(Options):
    """Requests of different lengths in one batch: all become as long as the longest, and what differs by more than half
    beyond 1024 runs apart. For models that mask what was added, or compute every element by itself.
    """

    inputs: dict[str, RaggedInputConfig] = Field(min_length=1)
    """An input -> how it is filled up; "*" stands for every input that varies and is not named."""
    cut: tuple[CutConfig, ...] = ()
    """Outputs that are cut back."""

    @field_validator("cut")
    @classmethod
    def _cut_to_what_is_ragged(cls, cuts: tuple[CutConfig, ...], info: ValidationInfo) -> tuple[CutConfig, ...]:
        inputs = info.data.get("inputs")
        for index, each in enumerate(cuts):
            cut = each.cut()
            one = None if inputs is None else inputs.get(cut.input, inputs.get("*"))
            if inputs is not None and (one is None or (one.axes and cut.input_axis not in one.axes)):
                raise refuse(index, "to", text=f'"{each.to}" is not a ragged axis of one of these inputs')
        return cuts

    def ragged(self) -> dict[str, RaggedInput]:
        """The ragged inputs as a backend takes them."""
        return {name: RaggedInput(one.axes, one.value, one.to_multiple_of) for name, one in self.inputs.items()}


class WarmupInput(Options):
    """One input of a sample."""

    data: Literal["ones", "zeros", "random"] = "ones"
    """What it is filled with; random: numbers from 0 to 1, integers to 9, the same at every start."""
    file: Annotated[FileRef, Existing("file")] | None = None
    """A file to read it from, in place of data: .npy, .json, or any other with its bytes as they are."""
    shape: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    """The shape of one row, or the whole shape without a batch dimension; null: as it is declared, 1 where it
    varies."""


class WarmupSample(Options):
    """A request that a model runs before it is ready, in each of its instances."""

    name: str = ""
    """What the sample is called where it fails."""
    batch_size: int = Field(default=1, ge=1)
    """How many rows it has; each is the same."""
    count: int = Field(default=1, ge=1, le=100_000)
    """How often it runs."""
    inputs: dict[str, WarmupInput] = Field(default_factory=dict)
    """Its inputs; those that are not named are as in the model's example, or ones."""


class SignatureConfig(Options):
    """A named view of a model, for TensorFlow Serving's callers. Those of classify and regress send tf.Examples."""

    method: Literal["predict", "classify", "regress"] = "predict"
    """What the signature is for."""
    inputs: dict[str, str] = Field(default_factory=dict)
    """The caller's name of an input, with classify and regress a feature of Examples -> the model's input; empty is
    all, by their own names."""
    defaults: dict[str, FeatureValue | tuple[FeatureValue, ...]] = Field(default_factory=dict)
    """With classify and regress, a feature -> its values in Examples that lack it: as many as a row has, or one."""
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
        if examples is not None and info.data.get("defaults"):
            raise ValueError("a model that takes Examples has defaults of its own")
        return examples

    @field_validator("defaults")
    @classmethod
    def _defaults_of_features(cls, defaults: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if defaults and info.data.get("method") == "predict":
            raise ValueError("only features of classify and regress have defaults")
        named = info.data.get("inputs")
        for name in defaults:
            if named and name not in named:
                raise refuse(name, text="is no feature of inputs")
        return defaults

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


class OutputConfig(Options):
    """An output of a model, where its file does not say it."""

    name: str = Field(min_length=1)
    """The tensor's name."""
    datatype: Literal[tuple(DTYPES)]  # type: ignore[valid-type]
    """Open Inference's name of the datatype."""
    shape: tuple[Annotated[int, Field(ge=-1)], ...] | None = None
    """The whole shape, batch dimension included (but not with max_batch_size auto), -1 where it varies; null is any
    rank."""

    def spec(self, labels: tuple[str, ...] = ()) -> TensorSpec:
        """As a specification; `labels` name the classes along the last axis."""
        return TensorSpec(self.name, DTYPES[self.datatype], self.shape, labels=labels)


class InputConfig(OutputConfig):
    """An input of a model, where its file does not say it."""

    optional: bool = False
    """Whether a request may leave it out."""

    def spec(self, labels: tuple[str, ...] = ()) -> TensorSpec:
        """As a specification."""
        return TensorSpec(self.name, DTYPES[self.datatype], self.shape, self.optional, labels)


class Step(Options):
    """One op before or after a model, beside the options of that op."""

    op: str
    """Which op."""


class ModelConfig(Options):
    """What is common to all models; the class of a backend adds that backend's options."""

    dialect_names: ClassVar[tuple[str, ...]] = ()

    backend: str
    """What computes the model."""
    path: Annotated[FileRef, Existing("any", or_elsewhere=True)] | None
    """Where the model lies, relative to this file: a folder with a folder for each version, or the model's file. Or a
    URL of either: s3://, gs://, az://, https://, hf://, oci://, mlflow://."""
    versions: VersionPolicy = Field(default=VersionPolicy(latest=1), json_schema_extra={"default": "latest"})
    """Which versions are served: latest, all, a list of them, or {latest: 2}; none: there are no version folders, the
    path is the model itself."""
    labels: dict[str, Annotated[int, Field(ge=0, le=MAX_VERSION)]] = Field(default_factory=dict)
    """Version labels."""
    verify: VerifyConfig | None = None
    """What its files have to prove before they are loaded; null: as model_control.verify says, if anything."""
    device: Placement = "auto"
    """auto: the first GPU, or the CPU where there is none; cpu; cuda or cuda:N: that GPU; cuda:*: every GPU; all: every
    GPU, or the CPU where there is none; a list of cpu and cuda:N: each of them, as often as it is named."""
    instances: int = Field(default=1, ge=1, le=1024)
    """How many copies of the model run side by side on each device."""
    process: Literal["engine", "own"] = "engine"
    """Where each copy of the model computes: engine, in the gateway's own process; own: in a process of its own, which
    is started again when it ends. For python, triton_python, onnx, torch and tensorflow."""
    max_memory_bytes: ByteSize | None = None
    """With process own: the most memory of the host that each of its processes may have, the interpreter's own 50 MiB
    among it: a number, or text like 2GiB. Beyond that an allocation fails, and so does the request. null: no limit."""
    max_batch_size: Annotated[int, Field(ge=0)] | Literal["auto"] = 0
    """The most rows in one batch; 0: the model has no batch dimension; auto: as the model's file allows, 4 or 0."""
    max_queue_delay_us: int = Field(default=0, ge=0)
    """How long an idle device waits for a fuller batch, in microseconds."""
    target_p99_ms: Annotated[float, Field(gt=0, le=600_000)] | None = None
    """The time, in milliseconds, in which 99 of 100 requests are to be answered. The gateway then chooses itself how
    long a batch waits and how large it is, refuses at once what would be late, and takes who is due first, in place of
    max_queue_delay_us, preferred_batch_sizes and send_on_mismatch. null: they count."""
    preferred_batch_sizes: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Sizes in which a batch leaves without waiting for more company."""
    send_on_mismatch: bool = False
    """Whether requests that wait max_queue_delay_us for company are sent as soon as one comes that cannot share their
    batch, whose inputs or shapes are others: as Triton does it. false: they wait on, which makes fuller batches."""
    batching: bool = True
    """Whether requests share runs; false: each runs alone, even with max_batch_size."""
    max_queue_size: int = Field(default=512, ge=1)
    """How many requests may wait."""
    queue: QueueConfig = QueueConfig()
    """What becomes of requests that wait long."""
    priorities: PrioritiesConfig | None = None
    """Which requests go first; null: all are equal."""
    inputs: tuple[InputConfig, ...] = ()
    """Inputs, where the model's file does not say them."""
    outputs: tuple[OutputConfig, ...] = ()
    """Outputs, where the model's file does not say them."""
    memory_limit_bytes: ByteSize | None = None
    """The most of a GPU's memory that each copy of the model may take, weights and what it computes with: a number, or
    text like 2GiB. Of ONNX models alone: other backends share one pool for the whole process. null: no limit."""
    pad_batches_to: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """The only numbers of rows that batches may have, [1, 4, 16] for example: copies of a row are added to others. The
    largest bounds max_batch_size. Empty: any number."""
    ragged: RaggedConfig | None = None
    """How requests of different lengths share a batch; null: only those of the same shapes do."""
    sequences: SequencesConfig | None = None
    """What makes it a model of sequences; null: every request stands for itself."""
    class_labels: dict[str, Annotated[FileRef, Existing("file")]] = Field(default_factory=dict)
    """An output -> a file with the names of its classes, one per line."""
    preprocess: tuple[Step, ...] = ()
    """Ops before the model, in order, on its device."""
    postprocess: tuple[Step, ...] = ()
    """Ops after the model, in order, on its device."""
    signatures: dict[str, SignatureConfig] = Field(default_factory=dict)
    """Named views for TensorFlow Serving's callers; serving_default over all inputs and outputs stands by itself."""
    text: TextOptions | None = None
    """What the model does with text, for callers that send texts and chats, and no tensors; null: nothing that they can
    ask for."""
    residency: ModelResidency = ModelResidency()
    """How it is held where models are loaded on demand."""
    response_cache: bool = False
    """Whether equal requests may get an answer that was given before; for models whose answer depends on nothing but
    the request's tensors and parameters. See the section of the same name."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """Free data handed to the model."""
    example: Annotated[FileRef, Existing("file")] | None = None
    """A JSON file with the inputs of one request: {"input": nested list}, or the bare list of a model's only input."""

    warmup: tuple[WarmupSample, ...] = ()
    """What it runs before it is ready. Empty: the example, and full batches of it, on a GPU or in the sizes of
    pad_batches_to, unless a run may have effects beyond its answer."""

    @field_validator("inputs", "outputs")
    @classmethod
    def _names_differ(cls, tensors: tuple[OutputConfig, ...]) -> tuple[OutputConfig, ...]:
        names = [tensor.name for tensor in tensors]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise refuse(index, "name", text=f'"{name}" stands already at [{names.index(name)}]')
        return tensors

    @field_validator("max_memory_bytes")
    @classmethod
    def _limits_a_process(cls, limit: int | None, info: ValidationInfo) -> int | None:
        if limit is not None and info.data.get("process") == "engine":
            raise ValueError("the memory of the engine has no limit for each model; add process: own to the model")
        return limit

    @field_validator("target_p99_ms")
    @classmethod
    def _chooses_the_delay(cls, target: float | None, info: ValidationInfo) -> float | None:
        if target is not None and info.data.get("max_queue_delay_us"):
            raise ValueError(
                "target_p99_ms chooses itself how long a batch waits; leave out max_queue_delay_us, or have the delay "
                "and no target"
            )
        return target

    @field_validator("preferred_batch_sizes", "send_on_mismatch", "sequences")
    @classmethod
    def _leaves_it_to_the_target(cls, value: Any, info: ValidationInfo) -> Any:
        if value and info.data.get("target_p99_ms") is not None:
            raise ValueError(f"target_p99_ms chooses batches itself; leave out {info.field_name}, or the target")
        return value

    @field_validator("preferred_batch_sizes")
    @classmethod
    def _sizes_fit(cls, sizes: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        most = info.data.get("max_batch_size")
        for index, size in enumerate(sizes):
            if isinstance(most, int) and size > most:
                raise refuse(index, text=f"more than max_batch_size, {most}")
        return sizes

    @field_validator("pad_batches_to")
    @classmethod
    def _sizes_rise(cls, sizes: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        for index, (size, following) in enumerate(pairwise(sizes)):
            if following <= size:
                raise refuse(index + 1, text=f"no more than {size} before it; expected sizes that rise")
        return cls._sizes_fit(sizes, info)

    @field_validator("sequences")
    @classmethod
    def _sequences_stand_alone(cls, sequences: SequencesConfig | None, info: ValidationInfo) -> SequencesConfig | None:
        if sequences is None:
            return sequences
        if info.data.get("priorities") is not None:
            raise ValueError("requests of a sequence keep their order, so that the model can have no priorities")
        if info.data.get("pad_batches_to") or info.data.get("ragged"):
            raise ValueError("a row that is added would be a step of a sequence: no pad_batches_to, no ragged")
        sequences.refuse_declared("input", [tensor.name for tensor in info.data.get("inputs", ())])
        sequences.refuse_declared("output", [tensor.name for tensor in info.data.get("outputs", ())])
        return sequences

    @field_validator("labels")
    @classmethod
    def _labels_are_served(cls, labels: dict[str, int], info: ValidationInfo) -> dict[str, int]:
        policy = info.data.get("versions")
        for label, version in labels.items():
            if policy is not None and policy.named and version not in policy.named:
                raise refuse(label, text=f"version {version} is not among the versions of this model")
        return labels

    def input_specs(self) -> tuple[TensorSpec, ...]:
        """The declared inputs and those that sequences add; empty if the model's file declares them."""
        if not self.inputs or self.sequences is None:
            return tuple(tensor.spec() for tensor in self.inputs)
        return (*(tensor.spec() for tensor in self.inputs), *self.sequences.input_specs())

    def output_specs(self) -> tuple[TensorSpec, ...]:
        """The declared outputs and the states of sequences; empty if the model's file declares them."""
        if not self.outputs or self.sequences is None:
            return tuple(tensor.spec() for tensor in self.outputs)
        return (*(tensor.spec() for tensor in self.outputs), *self.sequences.output_specs())

    def padding(self) -> Padding:
        """How batches are padded, as the pipeline takes it."""
        ragged = self.ragged
        cuts = tuple(each.cut() for each in ragged.cut) if ragged else ()
        return Padding(self.pad_batches_to, ragged.ragged() if ragged else NOTHING, cuts)

    def mappings(self) -> dict[str, Options]:
        """The sections that views carry: of dialects, by dialect name, and `text`; only those that are set."""
        sections = {name: getattr(self, name) for name in (*self.dialect_names, SECTION)}
        return {name: section for name, section in sections.items() if section is not None}
