"""One chunk on disk: its files are checked, and read in whatever form they were written."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from . import chunkfile
from .chunk import Arrays, Chunk, step_ids
from .chunkfile import ChunkName, Member
from .codecs import Codec, Spec
from .errors import ReplayError
from .schema import Field, Schema

_log = logging.getLogger("embodied")


class Source:
    """Where the steps of one chunk are; see `open`."""

    def __init__(self, path: Path, name: ChunkName, members: dict[str, Member], schema: Schema):
        self.schema = schema
        self._path = path
        self._name = name
        self._members = members
        self._context: Path | None = None
        self._version = 0
        self._later: dict[str, Member] = {}  # what was written back

    @classmethod
    def open(
        cls, path: Path, name: ChunkName, schema: Schema | None, codecs: Mapping[str, Codec]
    ) -> Source:
        """Checks a file with steps.

        Args:
          path: of the file.
          name: what its name says.
          schema: what the steps must look like, if that is known already.
          codecs: in which form the steps will be stored.

        Raises:
          ReplayError: it is damaged or does not fit.
        """
        members = _checked(path, name)
        if members["stepid"].shape[0] != name.length:
            raise ReplayError(f"Chunk file {path} does not hold the steps that its name says.")
        found = Schema(_declared(path, members), codecs)
        if schema and (difference := schema.differences(found)):
            raise ReplayError(f"Chunk file {path} has {difference}.")
        return cls(path, name, members, schema or found)

    def add_context(self, paths: Mapping[int, Path], wanted: int | None) -> None:
        """Adds what was written back, from a file that is whole; what is passed over is named.

        Args:
          paths: the files by their versions.
          wanted: the version to take, 0 for none; another one only if that is not there. By
            default, the newest.
        """
        if wanted == 0:
            return
        for version in sorted(paths, key=lambda version: (version != wanted, -version)):
            path = paths[version]
            try:
                self._later = self._checked_context(path)
            except ReplayError as error:
                _log.warning("Replay folder: skipped. %s", error)
                continue
            if wanted is not None and version != wanted:
                _log.warning("Replay folder: %s is taken; the version saved is missing.", path)
            self._context, self._version = path, version
            return
        if paths or wanted:
            _log.warning(
                "Replay folder: the steps of %s are as first stored, since no file with what "
                "was written back is left.", self._path,
            )  # fmt: skip

    @property
    def members(self) -> dict[str, tuple[Path, Member]]:
        """File and place of the newest values of every key."""
        members = {key: (self._path, member) for key, member in self._members.items()}
        if self._context is not None:
            members |= {key: (self._context, member) for key, member in self._later.items()}
        return members

    @property
    def ready(self) -> bool:
        """Whether the rows of every key are in one file, in the form that they are stored in."""
        whole = all(x.shape[0] == self._name.length for x in self._later.values())
        return whole and not self._recoded(self._members) and not self._recoded(self._later)

    def chunk(self) -> Chunk:
        """The chunk, without its steps; dirty or changed if they come in another form."""
        name = self._name
        chunk = Chunk(name.length, name.uuid, name.created)
        chunk.succ, chunk.length = name.succ, name.length
        chunk.path, chunk.context = self._path, self._context
        chunk.written, chunk.version = set(self._later), self._version
        chunk.dirty = self._recoded(self._members)
        chunk.changed = self._recoded(self._later)
        return chunk

    def read(self) -> Arrays:
        """The steps as they are stored in memory.

        Raises:
          ReplayError: a file has changed meanwhile, or values do not fit their codec.
        """
        data = chunkfile.read_arrays(self._path, self._members)
        later = chunkfile.read_arrays(self._context, self._later) if self._context else {}
        for field in self.schema.fields:
            key = field.key
            data[key] = _recode(data[key], self._members[key].tag, field)
            if key in later:
                values = _recode(later[key], self._later[key].tag, field)[: self._name.length]
                data[key][: len(values)] = values
        return data

    def _checked_context(self, path: Path) -> dict[str, Member]:
        members = _checked(path, self._name)
        known = {key: (dtype, shape) for key, dtype, shape in self.schema.specs}
        for key, spec in _declared(path, members).items():
            if known.get(key) != spec:
                raise ReplayError(f"Chunk file {path} does not fit the steps for key {key!r}.")
        del members["stepid"]
        return members

    def _recoded(self, members: Mapping[str, Member]) -> bool:
        tags = {field.key: field.codec.tag if field.codec else "" for field in self.schema.fields}
        return any(member.tag != tags.get(key, "") for key, member in members.items())


def _checked(path: Path, name: ChunkName) -> dict[str, Member]:
    members = chunkfile.read_members(path)
    stepid = members.get("stepid")
    length = stepid.shape[0] if stepid and stepid.shape else 0
    found = chunkfile.read_arrays(path, {"stepid": stepid})["stepid"] if stepid and length else 0
    if not length or not np.array_equal(found, step_ids(name.uuid, length)):
        raise ReplayError(f"Chunk file {path} does not hold the steps that its name says.")
    for key, member in members.items():
        if member.shape[:1] != (length,):
            raise ReplayError(
                f"Chunk file {path} has {member.dtype}{list(member.shape)} for key {key!r}: "
                f"{length} entries were expected."
            )
    return members


def _declared(path: Path, members: Mapping[str, Member]) -> dict[str, Spec]:
    specs = {}
    for key, member in members.items():
        if key == "stepid":
            continue
        stored, codec = (member.dtype, member.shape[1:]), Codec.parse(member.tag)
        spec = codec.declared(stored) if codec else stored
        if spec is None:
            raise ReplayError(
                f"Chunk file {path} has {stored[0]}{list(stored[1])} for key {key!r}, which is "
                f"not what the codec {member.tag} stores."
            )
        specs[key] = spec
    return specs


def _recode(array: np.ndarray, tag: str, field: Field) -> np.ndarray:
    if tag == (field.codec.tag if field.codec else ""):
        return array
    if codec := Codec.parse(tag):
        stored, array = array, np.empty((len(array), *field.shape), field.dtype)
        codec.decode(stored, array)
    return field.codec.encode(array, field.key) if field.codec else array
