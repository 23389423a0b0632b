"""What a program calls of transformers; says what each was really given."""

import json
import sys


def said(what, **given):
    sys.stdout.write("SAID " + json.dumps({"what": what, **given}, default=str) + "\n")


class BitsAndBytesConfig:
    def __init__(self, load_in_4bit=False, **more):
        self.load_in_4bit = load_in_4bit


class AutoModelForCausalLM:
    @classmethod
    def from_pretrained(cls, name, quantization_config=None, **more):
        said("model", name=name, load_in_4bit=bool(quantization_config and quantization_config.load_in_4bit))
        return cls()

    def gradient_checkpointing_enable(self, **more):
        pass


class TrainingArguments:
    def __init__(self, output_dir="out", **given):
        said("arguments", **given)


class Trainer:
    def __init__(self, *args, **given):
        pass

    def train(self):
        pass
