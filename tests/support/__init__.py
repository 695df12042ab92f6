"""What several tests share: random networks, independent oracles, stand-ins, and processes under limits."""
