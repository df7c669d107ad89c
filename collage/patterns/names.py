"""Short operator names: ``conv2d``, ``dense`` and ``relu`` for Relax's ``nn.conv2d``, ``matmul`` and ``nn.relu``."""

from __future__ import annotations

from collections.abc import Mapping

_ALIASES: Mapping[str, str] = {
    "dense": "matmul",
    "batch_matmul": "matmul",
    "bias_add": "add",
    "transpose": "permute_dims",
    "concatenate": "concat",
    "cast": "astype",
    "global_avg_pool2d": "mean",
    "neg": "negative",
}
"""The Relax operators that other systems, mostly TVM's older Relay, call by other names."""


class OpName(str):
    """An operator's short name that equals its other names: ``"matmul" == "dense" == "relax.matmul"``.

    Only ``==``, and ``in`` a tuple or list, know the aliases; hashing, so sets and dictionaries, does not.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and canonical(self) == canonical(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(canonical(self))


def canonical(name: str) -> str:
    """The name by which names are compared: without ``relax.``, ``nn.`` and ``image.``, and with aliases replaced."""
    plain = str.removeprefix(str.removeprefix(str.removeprefix(name, "relax."), "nn."), "image.")
    return _ALIASES.get(plain, plain)


def short_name(op: str) -> OpName:
    """The short name of a node's operator: ``conv2d`` for ``nn.conv2d``. Opaque ONNX operators keep ``onnx.``."""
    return OpName(canonical(op))
