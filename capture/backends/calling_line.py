"""Where an operation comes from: the line of the caller's own code, behind torch and the backends."""

import contextlib
import os
import sys

import torch

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_BACKENDS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_NOBODY = (_TORCH, _BACKENDS, "<frozen", contextlib.__file__)


def calling_line(called_from: str = "") -> tuple[str, int]:
    """File and line of the innermost running code that is neither torch's nor a backend's. An empty name and 0 where none
    is found before code of the file `called_from`."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file == called_from:
            break
        if not file.startswith(_NOBODY):
            return file, frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return "", 0
