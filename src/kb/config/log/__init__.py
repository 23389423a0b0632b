"""Logs as numbered lines, in bounded memory."""
