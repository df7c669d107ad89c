from collections.abc import Callable

class Call:
    """A call of a native task (see `call.cpp`)."""

    reentrant: bool
    def __new__(
        cls,
        function: int,
        a: int,
        b: int,
        n: int,
        c: int,
        hold: bool,
        reentrant: bool,
        failed: Callable[[int], object],
        keep: object,
        /,
    ) -> Call: ...
    def __call__(self) -> None: ...

def codes(values: list[object], known: dict[str, int], out: object, /) -> None: ...
def maps(rows: object, keys: tuple[object, ...], /) -> list[dict[object, float]]: ...
def run_table(
    function: int, program: int, inputs: list[object], outputs: list[object], rows: int, hold: bool, /
) -> int: ...
