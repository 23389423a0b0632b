"""The published guide: macros, generated pages, drawings and data, all from the same rules as the commands."""
