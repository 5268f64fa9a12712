"""A simulated group of cores: virtual time, with faults of the network, nodes and disks. All is determined by a seed.

`scenario` draws the scenario of a seed, `world` runs it, `checker` checks rules after every step, `run` runs a whole
seed, `mutations` are broken cores that must be detected.
"""
