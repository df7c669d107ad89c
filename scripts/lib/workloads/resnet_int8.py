"""ResNet-18 (He, Zhang, Ren, Sun: "Deep Residual Learning for Image Recognition", CVPR 2016, table 1) in 8 bits: the
scheme of Jacob et al.: "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference",
CVPR 2018, with a scale for each output channel of the weights and one for each activation.

The file has QuantizeLinear and DequantizeLinear around each convolution, and weights as int8; BatchNorm is gone into
the convolutions. Scales come from one forward pass of a random picture.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .weights import randomize
from .workload import Workload, gaussian_inputs

SIGNED, UNSIGNED = (-128, 127), (0, 255)


@dataclass(frozen=True)
class Shape:
    image: int  # pixels on a side
    width: int  # channels of the first stage; each later stage doubles it
    blocks: tuple[int, ...]  # pairs of convolutions in each stage
    classes: int


FULL = Shape(image=224, width=64, blocks=(2, 2, 2, 2), classes=1000)
SMALL = Shape(image=64, width=8, blocks=(1, 1), classes=10)


class Quantize(nn.Module):
    """Rounds to 8 bits and back. Its range is that of the first tensor it sees."""

    def __init__(self, limits: tuple[int, int]) -> None:
        super().__init__()
        self.limits = limits
        self.scale = 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.scale = self.scale or float(x.abs().max()) / self.limits[1]
        return torch.fake_quantize_per_tensor_affine(x, self.scale, 0, *self.limits)


class Weight(nn.Module):
    """Rounds a weight to 8 bits and back, with a scale for each of its outputs (axis 0), taken at the first call."""

    scale: Tensor
    zero: Tensor

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.register_buffer("scale", torch.zeros(outputs))
        self.register_buffer("zero", torch.zeros(outputs, dtype=torch.int32))
        self.ready = False

    def forward(self, weight: Tensor) -> Tensor:
        if not self.ready:
            self.scale.copy_(weight.detach().flatten(1).abs().amax(1) / SIGNED[1])
            self.ready = True
        return torch.fake_quantize_per_channel_affine(weight, self.scale, self.zero, 0, *SIGNED)


class Conv(nn.Module):
    """Convolution of 8-bit weights on what is 8-bit already; its result is not rounded yet."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2)
        self.weight = Weight(outputs)

    def forward(self, x: Tensor) -> Tensor:
        conv = self.conv
        weight = self.weight(conv.weight)
        return nn.functional.conv2d(x, weight, conv.bias, stride=conv.stride, padding=conv.padding)


class Block(nn.Module):
    """Two convolutions 3 x 3 and the shortcut: [N, inputs, H, W] -> [N, outputs, H / stride, W / stride]."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.round1 = Conv(inputs, outputs, 3, stride), Quantize(UNSIGNED)
        self.conv2, self.round2 = Conv(outputs, outputs, 3), Quantize(SIGNED)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(Conv(inputs, outputs, 1, stride), Quantize(SIGNED))
        self.round3 = Quantize(UNSIGNED)

    def forward(self, x: Tensor) -> Tensor:
        y = self.round2(self.conv2(self.round1(torch.relu(self.conv1(x)))))
        z: Tensor = self.round3(torch.relu(y + self.shortcut(x)))
        return z


class ResNet(nn.Module):
    """Picture [N, 3, image, image] -> logits [N, classes]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.round = Quantize(SIGNED)
        self.conv, self.round1 = Conv(3, shape.width, 7, 2), Quantize(UNSIGNED)
        blocks: list[nn.Module] = []
        channels = shape.width
        for stage, count in enumerate(shape.blocks):
            outputs = shape.width << stage
            for number in range(count):
                blocks.append(Block(channels, outputs, 2 if stage and not number else 1))
                channels = outputs
        self.blocks = nn.Sequential(*blocks)
        self.average, self.round2 = nn.AdaptiveAvgPool2d(1), Quantize(UNSIGNED)
        self.classifier, self.weight = nn.Linear(channels, shape.classes), Weight(shape.classes)
        self.round3 = Quantize(SIGNED)

    def forward(self, x: Tensor) -> Tensor:
        x = self.round1(torch.relu(self.conv(self.round(x))))
        x = self.blocks(torch.max_pool2d(x, 3, stride=2, padding=1))
        x = torch.flatten(self.round2(self.average(x)), 1)
        logits: Tensor = self.round3(
            nn.functional.linear(x, self.weight(self.classifier.weight), self.classifier.bias)
        )
        return logits


def build(*, batch: int, small: bool) -> Workload:
    """float32 `image` [batch, 3, 224, 224] -> float32 `logits` [batch, 1000]."""
    shape = SMALL if small else FULL
    model = ResNet(shape).eval()
    randomize(model, seed=13)
    sample = gaussian_inputs(batch, 3, shape.image, shape.image)
    with torch.no_grad():
        for block in model.blocks:
            block.conv2.conv.weight.mul_(0.5)  # else a sum of branches doubles its variance at every block
        model(*sample(0))
    # An engine that multiplies integers rounds a few values to the other side than one that multiplies floats.
    return Workload(model, ("image",), ("logits",), sample, tolerance=0.05)
