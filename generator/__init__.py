"""kgen: row reduction ops from a YAML spec to readable Triton kernels."""

__version__ = "0.1.0"
