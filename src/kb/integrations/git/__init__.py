"""Git, read only: a file's versions and a folder as it was. Nothing here writes to a repository."""
