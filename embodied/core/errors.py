"""Errors for people: each message is one sentence that says what is wrong and what is right."""


class EmbodiedError(Exception):
    """Base of every error that a user can cause and mend.

    The command line prints its message without a traceback and ends with status 2.
    """


class ConfigError(EmbodiedError):
    """A preset, flag, config key or value that does not exist or does not fit."""


class SpaceError(EmbodiedError):
    """A space that is unsupported, or a value that does not lie in its space.

    Attributes:
      bare: the message without environment and step, for those who name these themselves; empty
        if it names none.
    """

    bare = ""


class EnvError(EmbodiedError):
    """An environment that cannot be built or that breaks the contract of `embodied.Env`."""


class WorkerError(EmbodiedError):
    """A worker process of the driver that raised, died or hangs."""


class ReplayError(EmbodiedError):
    """A replay buffer that is asked for what it cannot hold or give."""


class CheckpointError(EmbodiedError):
    """A checkpoint that is missing, damaged or does not fit the object that loads it."""


class DeviceError(EmbodiedError):
    """Devices, meshes or batch sizes that do not fit together."""


class NonFiniteError(EmbodiedError):
    """A number that is not finite where only finite numbers are right."""


class MissingPackageError(EmbodiedError):
    """An optional package that the requested feature needs.

    Args:
      feature: what the user asked for, e.g. `"the suite 'dmc'"`; it begins the sentence.
      package: name of the missing package.
      install: the pip command that brings it, without the leading `pip install`.
    """

    def __init__(self, feature: str, package: str, install: str):
        super().__init__(
            f"{feature[:1].upper()}{feature[1:]} needs the package {package!r}, which is not "
            f"installed: run `pip install {install}`."
        )
