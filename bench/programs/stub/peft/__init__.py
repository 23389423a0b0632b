"""What a program calls of peft."""

from transformers import said


class LoraConfig:
    def __init__(self, r=8, **more):
        self.r = r


def get_peft_model(model, config):
    said("lora", r=config.r)
    return model
