"""Which functions of a SavedModel may be given inputs of another rank than their signature declares.

TensorFlow compares no shapes with a signature's, and TensorFlow Serving's callers rely on that: the first example of
its documentation sends [1.0, 2.0, 5.0] to a signature of [-1, 1]. But some kernels, convolutions among them, CHECK the
rank that they rely on, and a CHECK that fails ends the process. Nobody has a list of those. So there is one of
operations that take any rank or refuse it, each tried with fifteen shapes of 0 to 12 dimensions, and a graph that has
any other operation is held to what it declares.
"""

from __future__ import annotations

from typing import Any, Final

_COMPUTE: Final = """
Abs Acos Acosh Add AddN AddV2 Asin Asinh Atan Atan2 Atanh BatchMatMulV2 BiasAdd Cast Ceil ConcatV2 Cos Cosh Div DivNoNan
Elu Equal Erf Exp ExpandDims Expm1 Floor FloorDiv FloorMod Greater GreaterEqual Inv Invert IsFinite IsInf IsNan
LeakyRelu Less LessEqual Log Log1p LogicalAnd LogicalNot LogicalOr MatMul Maximum Minimum Mod Mul MulNoNan Neg NotEqual
OnesLike ParseExample ParseExampleV2 ParseSingleExample Pow RealDiv Reciprocal Relu Relu6 Reshape Rint Round Rsqrt Selu
Shape Sigmoid Sign Sin Sinh Size Softmax Softplus Softsign Sqrt Square SquaredDifference Sub Tan Tanh Tile TruncateDiv
TruncateMod Xdivy Xlogy ZerosLike
"""
_HOLD: Final = """
Assign AssignVariableOp Const DisableCopyOnRead Identity IdentityN NoOp PartitionedCall Placeholder
PlaceholderWithDefault ReadVariableOp StatefulPartitionedCall StopGradient VarHandleOp VarIsInitializedOp Variable
VariableV2
"""
_SAVE: Final = "MergeV2Checkpoints Pack RestoreV2 SaveV2 Select ShardedFilename StaticRegexFullMatch StringJoin"
"""What a SavedModel saves and restores itself with."""
_TAKE_ANY: Final = frozenset(f"{_COMPUTE} {_HOLD} {_SAVE}".split())


def operations_of(graph: Any) -> frozenset[str]:
    """The operations of a tensorflow.MetaGraphDef, those in its functions included."""
    library = graph.graph_def.library.function
    found = {node.op for node in graph.graph_def.node}
    found |= {node.op for function in library for node in function.node_def}
    return frozenset(found - {function.signature.name for function in library})


def takes_any_rank(operations: frozenset[str]) -> bool:
    """Whether each operation of a graph takes whatever rank it is given, or refuses it as an error."""
    return operations <= _TAKE_ANY
