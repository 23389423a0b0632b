"""The releases of the libraries that a project says it uses, from each kind of file that says one."""

from kb.core import late
from kb.core.typed import TYPE_CHECKING

if TYPE_CHECKING:
    from kb.config.releases.code import read_own
    from kb.config.releases.commands import read_dockerfile, read_workflows
    from kb.config.releases.project_files import read_pipfile, read_pyproject
    from kb.config.releases.requirement import read_environment, read_lock, read_pipfile_lock, read_requirements
    from kb.config.releases.setup_files import read_setup_cfg, read_setup_py

__all__ = [
    "read_dockerfile",
    "read_environment",
    "read_lock",
    "read_own",
    "read_pipfile",
    "read_pipfile_lock",
    "read_pyproject",
    "read_requirements",
    "read_setup_cfg",
    "read_setup_py",
    "read_workflows",
]
_MODULES = {  # each imported where a project has something for it
    "read_own": "code",
    **dict.fromkeys(("read_dockerfile", "read_workflows"), "commands"),
    **dict.fromkeys(("read_pipfile", "read_pyproject"), "project_files"),
    **dict.fromkeys(("read_environment", "read_lock", "read_pipfile_lock", "read_requirements"), "requirement"),
    **dict.fromkeys(("read_setup_cfg", "read_setup_py"), "setup_files"),
}
__getattr__ = late(__name__, _MODULES)
