"""Faults in the knowledge, each with its place."""

from kb.core.record import NamedTuple


class Problem(NamedTuple):
    """One fault in the knowledge: where, and what to do."""

    path: str
    line: int
    column: int
    message: str
    korean: str = ""  # the same in Korean, where there is one

    @staticmethod
    def of_file(path: str, message: str, korean: str = "") -> "Problem":
        """A fault of a file as a whole."""
        return Problem(path, 1, 1, message, korean)

    def in_language(self, language: str) -> str:
        """With its place; in English where it has no Korean."""
        told = self.korean if language == "ko" and self.korean else self.message
        return f"{self.path}:{self.line}:{self.column}: {told}"

    def __str__(self) -> str:
        return self.in_language("en")


class KnowledgeError(ValueError):
    """The rules cannot be used; every fault found, in the order of the files."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))
