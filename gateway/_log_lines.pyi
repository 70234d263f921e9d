from collections.abc import Callable

class Lines:
    def __init__(self, quoted: Callable[[str], str], moment: Callable[[int], str]) -> None: ...
    def add(
        self,
        names: str,
        request_id: str,
        now: float,
        received: int,
        sent: int,
        seconds: float,
        asked: object,
        rows: int,
        batch_rows: int,
        queue_s: float,
        compute_s: float,
        trace_id: str | None,
        /,
    ) -> int: ...
    def take(self) -> tuple[bytes, int]: ...
