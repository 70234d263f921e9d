"""The same networks as `networks` makes, as PyTorch modules with random weights, saved as TorchScript."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

_BLOCKS = (3, 4, 6, 3)


def _conv(takes: int, gives: int, kernel: int = 3, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(takes, gives, kernel, stride, kernel // 2)


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 and a way around them."""

    def __init__(self, takes: int, width: int, stride: int) -> None:
        super().__init__()
        gives = 4 * width
        self.inner = nn.Sequential(
            _conv(takes, width, 1), nn.ReLU(), _conv(width, width, 3, stride), nn.ReLU(), _conv(width, gives, 1)
        )
        self.around = nn.Identity() if (takes, stride) == (gives, 1) else _conv(takes, gives, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.inner(x) + self.around(x))


def resnet50(width: int = 64, classes: int = 1000) -> nn.Module:
    """x [N, 3, size, size] -> [N, classes]; batch normalisation is folded into the convolutions."""
    layers: list[nn.Module] = [_conv(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = width
    for stage, blocks in enumerate(_BLOCKS):
        for block in range(blocks):
            layers.append(Bottleneck(channels, width << stage, 2 if stage and not block else 1))
            channels = 4 * (width << stage)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def mlp(widths: Sequence[int]) -> nn.Module:
    """Dense layers with ReLU between them."""
    layers: list[nn.Module] = []
    for takes, gives in pairwise(widths):
        layers += [nn.Linear(takes, gives), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def save(module: nn.Module, path: Path, x: Any) -> Path:
    """As TorchScript, traced with `x`, a NumPy array in the dtype that it shall take. -> the folder with model.pt"""
    example = torch.from_numpy(x)
    path.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        torch.jit.trace(module.to(example.dtype).eval(), example).save(str(path / "model.pt"))
    return path
