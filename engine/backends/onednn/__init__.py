"""The oneDNN backend: the fast one on a CPU."""

from .backend import OneDnnBackend

__all__ = ["OneDnnBackend"]
