"""Which workloads there are. Needs no torch, so that names can be listed and checked without it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from .workload import Workload

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Entry:
    """One workload: its name, the module beside this one that builds it, and a line for `--list`.

    `skeleton` is the module that it shares with other workloads, if any.
    """

    name: str
    module: str
    summary: str
    skeleton: str | None = None

    @property
    def sources(self) -> tuple[Path, ...]:
        """The files of its own that its network depends on."""
        return tuple(HERE / f"{name}.py" for name in (self.module, self.skeleton) if name)

    def build(self, *, batch: int, small: bool) -> Workload:
        """The network with seeded random weights, in inference mode (imports torch)."""
        module = import_module(f"{__package__}.{self.module}")
        return cast("Workload", module.build(batch=batch, small=small))


ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry("bert_base", "bert", "BERT-base encoder, 64 tokens (Devlin et al. 2019)"),
        Entry("dcgan", "dcgan", "DCGAN generator, 3x64x64 (Radford et al. 2016)"),
        Entry("nasnet_a_mobile", "nasnet", "NASNet-A 4@1056, 3x224x224 (Zoph et al. 2018)"),
        Entry("resnet50_3d", "resnet3d", "3D ResNet-50, 3x16x112x112 (Hara et al. 2018)", "residual"),
        Entry("resnext50_32x4d", "resnext", "ResNeXt-50 32x4d, 3x224x224 (Xie et al. 2017)", "residual"),
    )
}
