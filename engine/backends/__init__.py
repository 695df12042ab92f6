"""Backends: what computes. Each lowers a graph to its layouts, lists kernels, and binds operations to addresses."""
