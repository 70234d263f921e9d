"""The kinds of errors of a request: one class each, which carries facts and no sentences.

Each dialect has one table that gives every kind its HTTP status, gRPC code and text. A dialect's own errors about its
wire format are `InvalidArgument`, `Unsupported` or `NotFound` with a finished text.

base      GatewayError, the codes, and what all kinds share
message   the request cannot be read, or has no endpoint
model     the model, version, label or signature cannot be called like this
tensor    inputs and outputs do not fit the model's specifications
sequence  the request does not fit its sequence
capacity  queues are full, deadlines pass, the model is being unloaded
failure   the model or the gateway failed
control   the caller may not, or may not so often; models cannot be loaded
memory    regions of shared memory
reasons   the closed list of why calls fail, one for each kind
"""

from tensorgate.gateway.contract.errors.base import Code as Code
from tensorgate.gateway.contract.errors.base import GatewayError as GatewayError
from tensorgate.gateway.contract.errors.base import code_of as code_of
from tensorgate.gateway.contract.errors.base import kinds as kinds
from tensorgate.gateway.contract.errors.base import source_location as source_location
from tensorgate.gateway.contract.errors.base import text_of as text_of
from tensorgate.gateway.contract.errors.capacity import DeadlineExceeded as DeadlineExceeded
from tensorgate.gateway.contract.errors.capacity import ModelUnavailable as ModelUnavailable
from tensorgate.gateway.contract.errors.capacity import QueueFull as QueueFull
from tensorgate.gateway.contract.errors.capacity import QueueTimeout as QueueTimeout
from tensorgate.gateway.contract.errors.capacity import WouldBeLate as WouldBeLate
from tensorgate.gateway.contract.errors.control import AdminRequired as AdminRequired
from tensorgate.gateway.contract.errors.control import CrossOriginRefused as CrossOriginRefused
from tensorgate.gateway.contract.errors.control import Forbidden as Forbidden
from tensorgate.gateway.contract.errors.control import LabelRefused as LabelRefused
from tensorgate.gateway.contract.errors.control import LoadFailed as LoadFailed
from tensorgate.gateway.contract.errors.control import LoadRefused as LoadRefused
from tensorgate.gateway.contract.errors.control import ModelControlOff as ModelControlOff
from tensorgate.gateway.contract.errors.control import ModelNotStored as ModelNotStored
from tensorgate.gateway.contract.errors.control import PlatformRefused as PlatformRefused
from tensorgate.gateway.contract.errors.control import RateLimited as RateLimited
from tensorgate.gateway.contract.errors.control import Reason as Reason
from tensorgate.gateway.contract.errors.control import ReloadFailed as ReloadFailed
from tensorgate.gateway.contract.errors.control import Unauthenticated as Unauthenticated
from tensorgate.gateway.contract.errors.failure import AlreadyExists as AlreadyExists
from tensorgate.gateway.contract.errors.failure import Cancelled as Cancelled
from tensorgate.gateway.contract.errors.failure import DeviceLost as DeviceLost
from tensorgate.gateway.contract.errors.failure import EncodingFailed as EncodingFailed
from tensorgate.gateway.contract.errors.failure import Exhausted as Exhausted
from tensorgate.gateway.contract.errors.failure import Internal as Internal
from tensorgate.gateway.contract.errors.failure import ModelFailed as ModelFailed
from tensorgate.gateway.contract.errors.failure import OutOfMemory as OutOfMemory
from tensorgate.gateway.contract.errors.failure import OutputRows as OutputRows
from tensorgate.gateway.contract.errors.failure import PreconditionFailed as PreconditionFailed
from tensorgate.gateway.contract.errors.failure import TimedOut as TimedOut
from tensorgate.gateway.contract.errors.failure import Unavailable as Unavailable
from tensorgate.gateway.contract.errors.failure import Unknown as Unknown
from tensorgate.gateway.contract.errors.memory import CudaMemoryUnavailable as CudaMemoryUnavailable
from tensorgate.gateway.contract.errors.memory import OutputTooLarge as OutputTooLarge
from tensorgate.gateway.contract.errors.memory import RegionExists as RegionExists
from tensorgate.gateway.contract.errors.memory import RegionInvalid as RegionInvalid
from tensorgate.gateway.contract.errors.memory import RegionKeyReserved as RegionKeyReserved
from tensorgate.gateway.contract.errors.memory import RegionLimit as RegionLimit
from tensorgate.gateway.contract.errors.memory import RegionNotFound as RegionNotFound
from tensorgate.gateway.contract.errors.memory import RegionOutOfBounds as RegionOutOfBounds
from tensorgate.gateway.contract.errors.memory import RegionRange as RegionRange
from tensorgate.gateway.contract.errors.memory import RegionUnreachable as RegionUnreachable
from tensorgate.gateway.contract.errors.memory import SharedMemoryDisabled as SharedMemoryDisabled
from tensorgate.gateway.contract.errors.message import BodyTooLarge as BodyTooLarge
from tensorgate.gateway.contract.errors.message import InvalidArgument as InvalidArgument
from tensorgate.gateway.contract.errors.message import MalformedJson as MalformedJson
from tensorgate.gateway.contract.errors.message import MethodNotAllowed as MethodNotAllowed
from tensorgate.gateway.contract.errors.message import NotFound as NotFound
from tensorgate.gateway.contract.errors.message import RouteNotFound as RouteNotFound
from tensorgate.gateway.contract.errors.message import Unsupported as Unsupported
from tensorgate.gateway.contract.errors.model import LabelNotFound as LabelNotFound
from tensorgate.gateway.contract.errors.model import ModelDecoupled as ModelDecoupled
from tensorgate.gateway.contract.errors.model import ModelNotFound as ModelNotFound
from tensorgate.gateway.contract.errors.model import NotOneAnswer as NotOneAnswer
from tensorgate.gateway.contract.errors.model import SignatureNotFound as SignatureNotFound
from tensorgate.gateway.contract.errors.reasons import ErrorReason as ErrorReason
from tensorgate.gateway.contract.errors.sequence import SequenceBatch as SequenceBatch
from tensorgate.gateway.contract.errors.sequence import SequenceCancelled as SequenceCancelled
from tensorgate.gateway.contract.errors.sequence import SequenceIdMismatch as SequenceIdMismatch
from tensorgate.gateway.contract.errors.sequence import SequenceIdMissing as SequenceIdMissing
from tensorgate.gateway.contract.errors.sequence import SequenceNotStarted as SequenceNotStarted
from tensorgate.gateway.contract.errors.tensor import BatchMismatch as BatchMismatch
from tensorgate.gateway.contract.errors.tensor import BatchMissing as BatchMissing
from tensorgate.gateway.contract.errors.tensor import BatchTooLarge as BatchTooLarge
from tensorgate.gateway.contract.errors.tensor import ClassesTooMany as ClassesTooMany
from tensorgate.gateway.contract.errors.tensor import ClassesUnsupported as ClassesUnsupported
from tensorgate.gateway.contract.errors.tensor import DtypeMismatch as DtypeMismatch
from tensorgate.gateway.contract.errors.tensor import InputCount as InputCount
from tensorgate.gateway.contract.errors.tensor import ShapeMismatch as ShapeMismatch
from tensorgate.gateway.contract.errors.tensor import UnknownInput as UnknownInput
from tensorgate.gateway.contract.errors.tensor import UnknownOutput as UnknownOutput
