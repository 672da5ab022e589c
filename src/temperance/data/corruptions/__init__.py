"""Common corruptions of images, by name and severity."""

from temperance.data.corruptions import blur, digital, noise, weather
from temperance.data.corruptions.base import CORRUPTIONS, Corruption, corrupt

__all__ = ["CORRUPTIONS", "Corruption", "blur", "corrupt", "digital", "noise", "weather"]
