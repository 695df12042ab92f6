"""The plan as data, and what reads a plan without knowing who made it: verification, simulation, explanation."""
