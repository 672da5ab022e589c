"""Pictures of many cells as PNG, where a rectangle for each would make the page too large."""

from __future__ import annotations

import base64
import struct
import zlib

from torch import Tensor


def png(pixels: Tensor) -> bytes:
    """Colours with opacity (height, width, 4) in uint8 as a PNG file."""
    height, width, _ = pixels.shape
    rows = pixels.cpu().contiguous().numpy()
    # Every line begins with the number of its filter: none.
    raw = b"".join(b"\x00" + rows[i].tobytes() for i in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def data_address(pixels: Tensor) -> str:
    """The picture as an address that carries it."""
    return "data:image/png;base64," + base64.b64encode(png(pixels)).decode()


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
