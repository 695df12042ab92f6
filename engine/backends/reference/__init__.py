"""The numpy backend: the oracle for all others, and the one that runs everywhere."""

from .backend import ReferenceBackend

__all__ = ["ReferenceBackend"]
