"""What the YAML may say of a PyTorch program."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field

from tensorgate.gateway.contract.options import Options
from tensorgate.gateway.contract.tensor import DTYPES, TensorSpec

FILES: Final = ("model.pt2", "model.pt")
Datatype: TypeAlias = Literal[tuple(DTYPES)]  # type: ignore[valid-type]


class TorchTensor(Options):
    """An input or output of the program itself."""

    name: str = Field(min_length=1, description="The tensor's name.")
    datatype: Datatype = Field(description="Open Inference's name of the datatype.")
    shape: tuple[Annotated[int, Field(ge=-1)], ...] | None = Field(
        None, description="The whole shape, batch dimension included, -1 where it varies; null is any rank."
    )
    optional: bool = Field(False, description="Of an input, whether it may be left out.")

    def spec(self) -> TensorSpec:
        """As a specification."""
        return TensorSpec(self.name, DTYPES[self.datatype], self.shape, self.optional)


class TorchOptions(Options):
    """What the YAML may say of a PyTorch program."""

    file: str = Field("", description=f"Name of the file in each version folder; empty: {' or '.join(FILES)}.")
    model_inputs: tuple[TorchTensor, ...] = Field(
        (), description="What the program takes, where preprocess makes that of inputs and the file does not tell it."
    )
    model_outputs: tuple[TorchTensor, ...] = Field(
        (), description="What the program gives, where postprocess makes outputs of that and the file does not tell it."
    )
    trusted: bool = Field(
        False,
        description="Whether the file may run code of its own when it is read: needed for packages that AOTInductor "
        "compiled, and for exported programs with pickled objects. TorchScript and other exported programs call "
        "torch's operators alone.",
    )
    compile: bool = Field(
        False,
        description="Compile an exported program with torch.compile, for any sizes: the first run takes long, and on "
        "the CPU a C++ compiler.",
    )
    cuda_graph: bool = Field(
        False,
        description="On a GPU, whether the kernels of a run are recorded, and started together from then on: at load "
        "for the sizes of pad_batches_to, of other shapes when they come often; the last 32 are kept.",
    )
    autocast: Literal["", "FP16", "BF16"] = Field(
        "", description="Compute in this datatype where torch holds that to be safe, whatever the weights are."
    )
    channels_last: bool = Field(False, description="Lay images out as NHWC in memory, weights as well as inputs.")
    tf32: bool = Field(
        False,
        description="On a GPU, multiply FP32 matrices in TF32. All models of the process share it, and the first one "
        "that loads says how.",
    )
    cudnn_benchmark: bool = Field(
        False,
        description="On a GPU, try all of cuDNN's convolutions for each new shape. All models of the process share it, "
        "and the first one that loads says how.",
    )
    intra_op_threads: int = Field(
        0,
        ge=0,
        description="Threads that share one operator; 0 leaves it to torch, which takes all cores. All models of the "
        "process share it, and the first one that sets it says how many.",
    )
