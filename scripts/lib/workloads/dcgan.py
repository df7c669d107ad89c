"""DCGAN's generator (Radford, Metz, Chintala: "Unsupervised Representation Learning with Deep
Convolutional Generative Adversarial Networks", ICLR 2016, figure 1), at the usual 64 x 64 with 64 filters."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .weights import randomize
from .workload import Workload, gaussian_inputs


@dataclass(frozen=True)
class Shape:
    latent: int
    filters: int


FULL = Shape(latent=100, filters=64)
SMALL = Shape(latent=16, filters=4)


class Upsample(nn.Module):
    """Transposed convolution 4 x 4, BatchNorm, ReLU: [N, inputs, H, W] -> [N, outputs, H', W']."""

    def __init__(self, inputs: int, outputs: int, *, stride: int, padding: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose2d(inputs, outputs, 4, stride=stride, padding=padding, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(x)))


class Generator(nn.Module):
    """Latent [N, latent, 1, 1] -> picture [N, 3, 64, 64] in (-1, 1)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.filters
        self.up1 = Upsample(shape.latent, 8 * width, stride=1, padding=0)  # 4 x 4
        self.up2 = Upsample(8 * width, 4 * width, stride=2, padding=1)  # 8 x 8
        self.up3 = Upsample(4 * width, 2 * width, stride=2, padding=1)  # 16 x 16
        self.up4 = Upsample(2 * width, width, stride=2, padding=1)  # 32 x 32
        self.to_rgb = nn.ConvTranspose2d(width, 3, 4, stride=2, padding=1, bias=False)  # 64 x 64

    def forward(self, z: Tensor) -> Tensor:
        return torch.tanh(self.to_rgb(self.up4(self.up3(self.up2(self.up1(z))))))


def build(*, batch: int, small: bool) -> Workload:
    """float32 `z` [batch, 100, 1, 1] -> float32 `image` [batch, 3, 64, 64]."""
    shape = SMALL if small else FULL
    model = Generator(shape).eval()
    randomize(model, seed=2)
    return Workload(model, ("z",), ("image",), gaussian_inputs(batch, shape.latent, 1, 1))
