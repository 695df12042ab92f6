"""The plan as data, and what reads it without knowing its maker: verification, simulation, explanation."""
