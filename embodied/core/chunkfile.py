"""Chunk files: npz archives, uncompressed, that end in a checksum of all their bytes.

    <created>-<uuid>-<uuid of successor>-<length>.npz    the steps
    <created>-<uuid>-context-<version>.npz               what was written back into them later

No file changes once it is there: a chunk that has grown, or into which more was written back, gets
another one, so that a checkpoint can name the files that it needs.
The checksum is the archive's comment, so that every reader of npz files can read them. Arrays of
a codec have its tag as the comment of their archive member.
"""

from __future__ import annotations

import os
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from .errors import ReplayError

_STEPS = re.compile(r"(\d{8}T\d{6}F\d{6})-([0-9a-f]{32})-([0-9a-f]{32})-(\d{1,10})\.npz")
_CONTEXT = re.compile(r"\d{8}T\d{6}F\d{6}-([0-9a-f]{32})-context-(\d{1,18})\.npz")
_TEMPORARY = ".tmp"
_CHECKSUM = 8  # hexadecimal digits


class ChunkName(NamedTuple):
    """What the name of a file with steps says."""

    created: str
    uuid: bytes
    succ: bytes
    length: int

    @classmethod
    def parse(cls, name: str) -> ChunkName | None:
        """The parts of the name, or None for the name of something else."""
        match = _STEPS.fullmatch(name)
        if not match or not int(match[4]):
            return None
        return cls(match[1], bytes.fromhex(match[2]), bytes.fromhex(match[3]), int(match[4]))

    def __str__(self) -> str:
        return f"{self.created}-{self.uuid.hex()}-{self.succ.hex()}-{self.length}.npz"


class Version(NamedTuple):
    """Which files of a chunk a saved state refers to; `context` is 0 if there is no such file."""

    succ: bytes
    length: int
    context: int


def context_name(created: str, uuid: bytes, version: int) -> str:
    """The name of a file for what was written back into a chunk."""
    return f"{created}-{uuid.hex()}-context-{version}.npz"


def parse_context(name: str) -> tuple[bytes, int] | None:
    """Chunk id and version of the context file of this name; None for other names."""
    match = _CONTEXT.fullmatch(name)
    return (bytes.fromhex(match[1]), int(match[2])) if match else None


def is_temporary(name: str) -> bool:
    """Whether a writer that was killed has left a file of this name."""
    name, end = name[: -len(_TEMPORARY)], name[-len(_TEMPORARY) :]
    return end == _TEMPORARY and bool(ChunkName.parse(name) or parse_context(name))


class Member(NamedTuple):
    """An array in a file: where its bytes are and what they stand for."""

    offset: int
    dtype: np.dtype
    shape: tuple[int, ...]
    tag: str

    @property
    def nbytes(self) -> int:
        """Its size in the file."""
        return self.dtype.itemsize * int(np.prod(self.shape))

    def read(self, file: BinaryIO, start: int, out: np.ndarray) -> None:
        """Fills the contiguous array `out` with the rows from `start` on.

        Raises:
          EOFError: the file has become shorter.
        """
        row = self.nbytes // self.shape[0]
        file.seek(self.offset + start * row)
        if file.readinto(out.reshape(-1).view(np.uint8)) != out.nbytes:  # type: ignore[attr-defined]
            raise EOFError("it is shorter than it was")


def write_temporary(path: Path, arrays: Mapping[str, np.ndarray], tags: Mapping[str, str]) -> Path:
    """Writes the file under a temporary name, which is to be replaced, and syncs it.

    So the file is whole or absent, whenever the process dies; the caller syncs the folder.

    Args:
      path: the name that the file shall have.
      arrays: what it holds.
      tags: codecs of some of the arrays.

    Returns:
      The path of the file as it is.
    """
    temporary = path.with_name(path.name + _TEMPORARY)
    with open(temporary, "wb") as file:
        summed: Any = _Summed(file)
        # np.savez would take keys such as `file` for its own arguments.
        with zipfile.ZipFile(summed, "w", zipfile.ZIP_STORED) as archive:
            for key, array in arrays.items():
                info = zipfile.ZipInfo(key + ".npy")
                info.comment = tags.get(key, "").encode()
                with archive.open(info, "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
            archive.comment = bytes(_CHECKSUM)  # makes room; zeros count as such in the sum
        file.seek(-_CHECKSUM, os.SEEK_END)
        file.write(b"%08x" % summed.checksum)
        file.flush()
        os.fsync(file.fileno())
    return temporary


def read_members(path: Path, verify: bool = True) -> dict[str, Member]:
    """The arrays in a file; executes nothing that is in it.

    Args:
      path: of the file.
      verify: whether to compare the checksum, for which all of the file is read.

    Raises:
      ReplayError: the file is damaged.
    """
    try:
        with open(path, "rb") as file:
            summed = _is_summed(file)
            if verify and summed:
                _verify(file)
            with zipfile.ZipFile(file) as archive:
                if verify and not summed and (name := archive.testzip()):
                    raise ValueError(f"bad checksum of {name}")
                infos = archive.infolist()
            return {info.filename.removesuffix(".npy"): _locate(file, info) for info in infos}
    except Exception as error:  # damaged bytes raise from every layer below
        raise ReplayError(f"Chunk file {path} is unreadable ({error!r}).") from error


def read_arrays(path: Path, members: Mapping[str, Member]) -> dict[str, np.ndarray]:
    """Reads arrays of a file whose members are known.

    Raises:
      ReplayError: the file has gone or has become shorter.
    """
    arrays = {k: np.empty(member.shape, member.dtype) for k, member in members.items()}
    try:
        with open(path, "rb", buffering=0) as file:
            for key, member in members.items():
                member.read(file, 0, arrays[key])
    except (OSError, EOFError) as error:
        raise ReplayError(f"Chunk file {path} is unreadable ({error!r}).") from error
    return arrays


class _Summed:
    """A file to append to, with the checksum of what was written."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self.checksum = 0

    def write(self, data: Any) -> int:
        self.checksum = zlib.crc32(data, self.checksum)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


def _is_summed(file: BinaryIO) -> bool:
    # Files without a checksum, as were written at first, end in an end record without comment.
    file.seek(-22, os.SEEK_END)
    end = file.read()
    return not (end.startswith(b"PK\5\6") and end.endswith(b"\0\0"))


def _verify(file: BinaryIO) -> None:
    size = file.seek(0, os.SEEK_END) - _CHECKSUM
    file.seek(0)
    checksum, block = 0, memoryview(bytearray(1 << 20))
    while size > 0 and (count := file.readinto(block[: min(size, len(block))])):  # type: ignore[attr-defined]
        checksum = zlib.crc32(block[:count], checksum)
        size -= count
    if file.read() != b"%08x" % zlib.crc32(bytes(_CHECKSUM), checksum):
        raise ValueError("bad checksum")


def _locate(file: BinaryIO, info: zipfile.ZipInfo) -> Member:
    if info.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{info.filename} is compressed")
    file.seek(info.header_offset)
    lengths = struct.unpack("<26x2H", file.read(30))
    start = info.header_offset + 30 + sum(lengths)
    file.seek(start)
    if (version := np.lib.format.read_magic(file)) != (1, 0):  # others take long headers
        raise ValueError(f"{info.filename} has version {version}")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    member = Member(file.tell(), dtype, shape, info.comment.decode())
    fits = member.offset - start + member.nbytes == info.file_size
    if fortran or dtype.kind not in "biufc" or not fits:
        raise ValueError(f"{info.filename} is {dtype}{list(shape)} in {info.file_size} bytes")
    return member
