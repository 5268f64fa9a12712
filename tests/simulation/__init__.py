"""A group of cores in a simulated world: virtual time, a network and disks that fail, every step judged.

Everything that happens follows from a seed. `scenario` draws what a seed is about, `world` runs it, `judge` says what
must hold after every step, `run` plays one seed to its end, `mutations` are broken cores that must be caught.
"""
