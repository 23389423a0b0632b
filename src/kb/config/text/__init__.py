"""From the bytes of a config to its documents as nodes with positions, bounded and without running anything."""
