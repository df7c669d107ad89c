"""A sequence of tokens on its way through the engine: what the scheduler reads of a request."""

from __future__ import annotations

from dataclasses import dataclass, field

from collage.serve.blocks import block_key

PRIORITY_S = 10.0
"""What one step of priority is worth: a request of priority 1 waits as if it had come this much later."""


@dataclass(slots=True, eq=False)
class Sequence:
    """The tokens of a prompt and of its answer so far, with the state that changes at each iteration.

    ``max_length`` is the most tokens that it can have. ``computed`` tokens have keys and values in the cache, in
    ``blocks``; ``cached`` of them were found there, and ``registered`` blocks can be found by others. ``leader`` is a
    sequence with the same prompt whose blocks this one waits for, and ``root`` the key that the keys of its blocks
    begin with. ``started`` says that it was admitted once, ``in_flight`` that an iteration with it has not returned,
    and ``done`` that it has left the engine. Times are in seconds of the engine's clock.
    """

    id: int
    tokens: list[int]
    prompt_length: int
    max_length: int
    arrival: int
    arrival_s: float = 0.0
    priority: int = 0
    deadline_s: float = float("inf")
    leader: Sequence | None = None
    root: bytes = b""
    computed: int = 0
    cached: int = 0
    blocks: tuple[int, ...] = ()
    keys: list[bytes] = field(default_factory=list)
    registered: int = 0
    started: bool = False
    in_flight: bool = False
    cancelled: bool = False
    done: bool = False
    order: tuple[float, int] = field(init=False)
    """What waiting sequences are sorted by: arrival, shifted by priority. It never changes, so nobody starves."""

    def __post_init__(self) -> None:
        self.order = (self.arrival_s + PRIORITY_S * self.priority, self.arrival)

    @property
    def remaining(self) -> int:
        """The tokens whose keys and values are not computed yet; a running stream has one."""
        return len(self.tokens) - self.computed

    @property
    def waits_for_leader(self) -> bool:
        """Whether the prompt that this sequence shares is still being computed."""
        leader = self.leader
        return leader is not None and not leader.done and leader.computed < leader.prompt_length

    def extend_keys(self, block_tokens: int, full: int) -> None:
        """Compute the keys of the first ``full`` blocks, of which those known already are kept."""
        while len(self.keys) < full:
            at = len(self.keys) * block_tokens
            parent = self.keys[-1] if self.keys else self.root
            self.keys.append(block_key(parent, self.tokens[at : at + block_tokens]))
