"""The pure floor: units, expressions, facts, findings. Standard library only; no I/O, no clock, no printing."""
