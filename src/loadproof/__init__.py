"""loadproof: is an engine restarted from a weight-cache daemon byte for byte the engine that read the disk?

``harness`` is the library and knows nothing of pytest; ``fixtures`` is the pytest plugin; ``cases`` are the
claims; ``reports`` turns evidence into the report. Importing this package imports none of them.
"""

__version__ = "0.1.0"
