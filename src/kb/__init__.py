"""kb: know before you run. GPU and host memory of Hugging Face style configs, checked against rules that are data."""

__version__ = "0.1.0"
