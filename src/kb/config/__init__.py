"""Configs as people write them (YAML, JSON, command lines), read with positions into settings; fixes; suppressions."""
