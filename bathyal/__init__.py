"""Bathyal trains networks deeper than the memory: give it a network and a number of bytes."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
