"""What backends of NumPy and a few lines have in common, for tests of what stands around a backend."""

from tensorgate.gateway.contract.backend import Backend


class PaperBackend(Backend):
    """Computes in a thread, or on the loop, one answer for each request; requests may share a batch."""

    inline = True
    platform = "test"
