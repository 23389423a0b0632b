"""The memory model: closed forms from model dimensions and settings to a ledger in bytes. Pure."""
