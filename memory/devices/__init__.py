"""Devices, each an arena with the queues that compute on it and copy to and from it.

`device` is the protocol, `host` computes in this process, and `simulated` runs queues in an adversarial order and finds
races, with `shadow` to remember what touched each byte last. `bandwidth` measures how fast a device reaches a tier.
"""
