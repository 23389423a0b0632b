"""What the engine says where it does not follow a run."""


class NotFollowedError(ValueError):
    """The run takes a path that the engine does not follow; ``what`` names it in the field's words."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
