"""The way of a text or JSON report imports only what is cheap."""

import subprocess
import sys

COSTLY = (
    "pathlib",
    "shutil",
    "jsonschema",
    "rich",
    "torch",
    "xml",
    "hashlib",
    "urllib",
    "difflib",
    "logging",
    "textwrap",
)


def test_text_and_json_reports_import_nothing_costly() -> None:
    code = (
        "import sys; before = set(sys.modules)\n"
        "import kb.report.check.text, kb.report.check.json_report, kb.report.terminal, kb.report.words\n"
        f"print(sorted({COSTLY!r} & {{name.partition('.')[0] for name in set(sys.modules) - before}}))"
    ).replace(f"{COSTLY!r} &", f"set({COSTLY!r}) &")
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
