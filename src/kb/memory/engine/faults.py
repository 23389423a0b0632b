"""What the engine says where it does not follow a run."""

from kb.core.setup import TrainingSetup


class NotFollowedError(ValueError):
    """The run takes a path that the engine does not follow; ``what`` names it in the field's words."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class DdpRefusesError(NotFollowedError):
    """DDP itself stops the run: parameters that train got no gradient, and nothing looks for such. ``names`` are
    theirs, where they have some."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__("unused parameters without ddp_find_unused_parameters")
        self.names = names


def refuse(what: str, setup: TrainingSetup) -> None:
    """Do not follow ``what``, unless the setup is to be followed there though nothing was compared with real code.

    Raises:
        NotFollowedError: with this name.
    """
    if what not in setup.uncompared:
        raise NotFollowedError(what)
