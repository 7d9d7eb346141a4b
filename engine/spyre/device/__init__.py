"""The simulated Spyre device: it takes tensors, keeps the KV cache and checks constraints."""

from engine.spyre.device.device import SpyreDevice
from engine.spyre.device.inputs import DecodeInput, Device, PrefillInput

__all__ = ["DecodeInput", "Device", "PrefillInput", "SpyreDevice"]
