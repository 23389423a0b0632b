"""Hydra's config trees: a primary config and the group files that its defaults list names, composed into one."""
