"""Objects that a config has built (``_target_``), read under the name of the group that they are."""

from kb.config.dialect.dialects import Entry
from kb.config.text.nodes import MAPPING, SCALAR

# The class that `_target_` ends with → the group of settings that its arguments are.
CLASSES = {
    "TrainingArguments": "training",
    "Seq2SeqTrainingArguments": "training",
    "SFTConfig": "training",
    "DPOConfig": "training",
    "GRPOConfig": "training",
    "KTOConfig": "training",
    "RewardConfig": "training",
    "LoraConfig": "lora",
    "BitsAndBytesConfig": "quantization",
}


def arranged(entries: dict[str, Entry]) -> dict[str, Entry]:
    """The entries with those of known objects moved to the top, wherever they stand: ``trainer.args`` → ``training``.

    Each keeps its place in the file. Where two objects are of one class neither is moved: they are two runs.
    """
    found: dict[str, list[str]] = {}
    for path, (_, key, value) in entries.items():
        if key.value != "_target_" or value.kind != SCALAR or "." not in path:
            continue
        holder = path.removesuffix("._target_")
        group = CLASSES.get(value.value.rpartition(".")[2])
        if ".from_pretrained" in value.value and "AutoModel" in value.value:
            group = "model"
        if group is not None:
            found.setdefault(group, []).append(holder)
    moves = {paths[0]: group for group, paths in found.items() if len(paths) == 1 and paths[0] != group}
    if not moves:
        return entries
    made = dict(entries)
    for holder, group in moves.items():
        for path, entry in entries.items():
            if path.startswith(holder + "."):
                del made[path]
                made[f"{group}.{path[len(holder) + 1 :]}"] = entry
        if entries[holder][2].kind == MAPPING:
            made.setdefault(group, entries[holder])
    return made
