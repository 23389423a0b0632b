"""The smoke run: its command line, and the ramp of batches."""

from kb.advice.formulas import ramp, smoke_command
from kb.knowledge import load_guide

GUIDE = load_guide()


def test_ten_steps_and_nothing_saved() -> None:
    words = smoke_command(GUIDE["runbooks"]["commands"])
    start = "uv run python code/trainer.py --config config.yaml --config-section eenzeenee --max_steps 10"
    assert " ".join(words) == f"{start} --save_strategy no"


def test_another_config_takes_the_notes_place() -> None:
    words = smoke_command(GUIDE["runbooks"]["commands"], "my runs/a.yaml", "xlsum_mt5")
    assert words[words.index("--config") + 1] == "my runs/a.yaml"
    assert words[words.index("--config-section") + 1] == "xlsum_mt5"


def test_the_ramp_carries_the_unrounded_value_on() -> None:
    rungs = list(ramp(GUIDE["formulas"]["batch-ramp"], 20))
    assert [rung.batch for rung in rungs] == [4, 5, 6, 7, 9, 12, 15, 19]
    assert [round(rung.exact, 2) for rung in rungs[:4]] == [4, 5, 6.25, 7.81]
    assert list(ramp(GUIDE["formulas"]["batch-ramp"], 3)) == []
