"""`python -m kb.recommend` is `kb recommend`."""

import sys
from typing import Any

from kb.commands.recommend import main as main


class _Callable(type(sys)):  # type: ignore[misc]
    """``kb.recommend(…)`` is a function of the API; importing the command of that name must not take it away."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        from kb.integrations.api import recommend  # the command does without

        return recommend(*arguments, **named)


sys.modules[__name__].__class__ = _Callable

if __name__ == "__main__":
    sys.exit(main())
