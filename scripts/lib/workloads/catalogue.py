"""The list of workloads. It does not import torch, so that names can be listed and checked without it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from .workload import Workload


@dataclass(frozen=True)
class Entry:
    """One workload: its name, the module beside this one that builds it, and a line for `--list`."""

    name: str
    module: str
    summary: str

    def build(self, *, batch: int, small: bool) -> Workload:
        """The network with seeded random weights, in inference mode (imports torch)."""
        module = import_module(f"{__package__}.{self.module}")
        return cast("Workload", module.build(batch=batch, small=small))


ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry("bert_base", "bert", "BERT-base encoder, 64 tokens (Devlin et al. 2019)"),
        Entry("bert_large", "bert_large", "BERT-large encoder, 64 tokens, 1.3 GB (Devlin et al. 2019)"),
        Entry("bilstm_tagger", "bilstm", "Bidirectional LSTM of two layers, 64 words (Huang et al. 2015)"),
        Entry("dcgan", "dcgan", "DCGAN generator, 3x64x64 (Radford et al. 2016)"),
        Entry("inception_v3", "inception", "Inception-v3, 3x299x299 (Szegedy et al. 2016)"),
        Entry("nasnet_a_mobile", "nasnet", "NASNet-A 4@1056, 3x224x224 (Zoph et al. 2018)"),
        Entry("resnet18_int8", "resnet_int8", "ResNet-18 in 8 bits, 3x224x224 (He et al. 2016)"),
        Entry("resnet50_3d", "resnet3d", "3D ResNet-50, 3x16x112x112 (Hara et al. 2018)"),
        Entry("resnext50_32x4d", "resnext", "ResNeXt-50 32x4d, 3x224x224 (Xie et al. 2017)"),
        Entry("ssd_mobilenet", "ssd", "SSD on a MobileNet, 3x256x256, with NMS (Liu et al. 2016)"),
        Entry("t5_small", "t5", "T5-small, 64 tokens in and 64 out (Raffel et al. 2020)"),
        Entry("unet", "unet", "U-Net, pictures of any size (Ronneberger et al. 2015)"),
        Entry("vit_tiny", "vit", "ViT-Ti/16, 3x224x224 (Dosovitskiy et al. 2021)"),
    )
}

PAPER = ("bert_base", "dcgan", "nasnet_a_mobile", "resnet50_3d", "resnext50_32x4d")
"""The Collage paper's five, which stand for all of them where no name is given."""
