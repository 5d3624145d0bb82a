"""Exceptions, one for each kind of failure."""
from __future__ import annotations


class Error(Exception):
    """Why a call failed. ``str()`` is one line: FILE @OFFSET 'KEY': PROBLEM.

    file: the file that is meant, or None.
    offset: bytes from its start, or None.
    key: the tensor, object or member that is meant, or None.
    hint: what may help, or None.
    """

    def __init__(self, message: str, file: str | None = None, offset: int | None = None,
                 key: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.file = file
        self.offset = offset
        self.key = key
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} (hint: {self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.message, self.file, self.offset, self.key, self.hint)


class InvalidArgumentError(Error, ValueError):
    """The request makes no sense, whatever the files hold."""


class CorruptError(Error, ValueError):
    """The input is malformed, damaged or unsafe."""


class UnsupportedError(Error, NotImplementedError):
    """The input is understood and not handled, or refused by request."""


class NotFoundError(Error, LookupError):
    """A file, a key or an iteration is not there."""


class MissingKeyError(NotFoundError, KeyError):
    """Nothing in the checkpoint has this name."""


class AlreadyExistsError(Error):
    """The destination exists."""


class IoError(Error):
    """The operating system refused, or the work was cancelled."""
