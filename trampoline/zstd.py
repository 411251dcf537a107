"""zstd through the system's libzstd.so.1 (zstd manual, 1.5): packing and unpacking of whole frames,
and unpacking of streams. Calls release the GIL."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_void_p
from typing import Any

_LARGEST_WINDOW = 27  # log2: what `zstd --long` makes; more memory is not granted
_WINDOW_LOG_MAX = 100  # ZSTD_d_windowLogMax


class ZstdError(Exception):
    """The data is not zstd, or is damaged."""


class _Buffer(ctypes.Structure):
    _fields_ = (("at", c_void_p), ("size", c_size_t), ("pos", c_size_t))


def _load() -> Any:
    library = ctypes.CDLL("libzstd.so.1")
    size = (c_size_t, (c_void_p, c_void_p, c_size_t, c_void_p, c_size_t))
    for name, (result, arguments) in {
        "ZSTD_createDCtx": (c_void_p, ()),
        "ZSTD_freeDCtx": (c_size_t, (c_void_p,)),
        "ZSTD_decompressDCtx": size,
        "ZSTD_createCCtx": (c_void_p, ()),
        "ZSTD_freeCCtx": (c_size_t, (c_void_p,)),
        "ZSTD_compressBound": (c_size_t, (c_size_t,)),
        "ZSTD_compressCCtx": (c_size_t, (*size[1], c_int)),
        "ZSTD_decompressStream": (c_size_t, (c_void_p, POINTER(_Buffer), POINTER(_Buffer))),
        "ZSTD_DCtx_setParameter": (c_size_t, (c_void_p, c_int, c_int)),
        "ZSTD_isError": (c_uint, (c_size_t,)),
        "ZSTD_getErrorName": (c_char_p, (c_size_t,)),
    }.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


_zstd = _load()


def _checked(code: int) -> int:
    if _zstd.ZSTD_isError(code):
        raise ZstdError(_zstd.ZSTD_getErrorName(code).decode())
    return code


class Decompressor:
    """A decompression context; one for each thread."""

    def __init__(self) -> None:
        self._context = _zstd.ZSTD_createDCtx()
        _checked(_zstd.ZSTD_DCtx_setParameter(self._context, _WINDOW_LOG_MAX, _LARGEST_WINDOW))

    def __del__(self) -> None:
        _zstd.ZSTD_freeDCtx(self._context)

    def into(self, data: bytearray, target: Any) -> int:
        """Decompress the whole frames in `data` into `target` (a writable buffer); return the
        number of bytes written.

        Raises ZstdError, also when `target` is too small.
        """
        source = (ctypes.c_char * len(data)).from_buffer(data)
        room = (ctypes.c_char * len(target)).from_buffer(target)
        return _checked(
            _zstd.ZSTD_decompressDCtx(self._context, room, len(target), source, len(data))
        )

    def stream(self, blocks: Iterator[bytes], size: int) -> Iterator[bytes]:
        """Yield the decompressed bytes of a stream of frames, in blocks of at most `size`. Raises
        ZstdError if the stream is cut short."""
        out = ctypes.create_string_buffer(size)
        target = _Buffer(ctypes.cast(out, c_void_p), size, 0)
        left = 0
        for block in blocks:
            source = _Buffer(ctypes.cast(c_char_p(block), c_void_p), len(block), 0)
            while source.pos < source.size or target.pos == target.size:
                if target.pos == target.size:
                    yield out.raw
                    target.pos = 0
                left = _checked(
                    _zstd.ZSTD_decompressStream(self._context, byref(target), byref(source))
                )
        if target.pos:
            yield out.raw[: target.pos]
        if left:
            raise ZstdError("cut short")


class Compressor:
    """A compression context; one for each thread."""

    def __init__(self, level: int) -> None:
        self._context = _zstd.ZSTD_createCCtx()
        self._level = level

    def __del__(self) -> None:
        _zstd.ZSTD_freeCCtx(self._context)

    def frame(self, data: bytearray) -> bytes:
        """Return `data` compressed as one frame, whose header has the decompressed length. Raises
        ZstdError."""
        room = ctypes.create_string_buffer(_zstd.ZSTD_compressBound(len(data)))
        source = (ctypes.c_char * len(data)).from_buffer(data)
        length = _checked(
            _zstd.ZSTD_compressCCtx(self._context, room, len(room), source, len(data), self._level)
        )
        return room.raw[:length]
