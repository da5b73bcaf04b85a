"""Modules that `qkv cost package.module:function` is tried on."""

from torch import nn


def network():
    return nn.Sequential(nn.Linear(10, 20, bias=False), nn.BatchNorm1d(20))


def bilinear():
    return nn.Bilinear(3, 5, 7)


def number():
    return 7


class Raising(nn.Module):
    def forward(self, x):
        raise RuntimeError("not today")


instance = nn.Linear(3, 4)


def raising():
    return Raising()
