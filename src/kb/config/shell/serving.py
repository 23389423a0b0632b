"""Programs that serve models: what starts each of them, on a command line and in a container."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise, takewhile

from kb.config.files import SHELL
from kb.config.shell.arguments import Argument
from kb.core.record import NamedTuple


class Server(NamedTuple):
    """``dialect`` is that of its flags. ``model``: the first argument without a dash names the model."""

    dialect: str
    model: bool = False
    short: Mapping[str, str] = {}  # flags of one dash, and their long names


_VLLM = {
    "-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size", "-dp": "--data-parallel-size",
    "-q": "--quantization", "-n": "--nnodes", "-dpn": "--data-parallel-rank", "-dpr": "--data-parallel-start-rank",
    "-dpl": "--data-parallel-size-local", "-dpa": "--data-parallel-address", "-dpb": "--data-parallel-backend",
}  # fmt: skip
_LLAMA = {
    "-m": "--model", "-c": "--ctx-size", "-np": "--parallel", "-ub": "--ubatch-size", "-b": "--batch-size",
    "-ngl": "--n-gpu-layers", "-ctk": "--cache-type-k", "-ctv": "--cache-type-v", "-fa": "--flash-attn",
    "-hf": "--hf-repo", "-hfr": "--hf-repo", "-kvu": "--kv-unified",
}  # fmt: skip
VLLM, SGLANG = Server("vllm", short=_VLLM), Server("sglang")
TGI, LLAMA = Server("tgi"), Server("llama-server", short=_LLAMA)

PROGRAMS = {"text-generation-launcher": TGI, "llama-server": LLAMA}
WITH_SUBCOMMAND = {"vllm": VLLM._replace(model=True), "sglang": SGLANG}  # `vllm serve`, `sglang serve`
MODULES = {
    "vllm.entrypoints.openai.api_server": VLLM,
    "vllm.entrypoints.api_server": VLLM,
    "sglang.launch_server": SGLANG,
}
HARNESSES = ("lm_eval", "lm-eval")  # `lm_eval --model vllm --model_args pretrained=M,…`: the keywords of `LLM()`
_OF_HARNESS = {"--pretrained": "--model", "--max_length": "--max_model_len"}
# What only the environment says, under its own name in the format.
VLLM_VARIABLES = ("VLLM_USE_V2_MODEL_RUNNER", "VLLM_ALLOW_LONG_MAX_MODEL_LEN")
# Options that TGI takes from a container's environment, too, under their names in capitals.
TGI_VARIABLES = (
    "MODEL_ID", "MAX_TOTAL_TOKENS", "MAX_INPUT_TOKENS", "MAX_INPUT_LENGTH", "MAX_BATCH_PREFILL_TOKENS",
    "MAX_BATCH_TOTAL_TOKENS", "CUDA_MEMORY_FRACTION", "NUM_SHARD", "QUANTIZE", "DTYPE", "KV_CACHE_DTYPE",
)  # fmt: skip
# Ray starts the ranks, in other containers and on other machines too.
SPREAD = re.compile(
    r"\bray[\"', \t]+(?:start|up|exec|attach)\b|ray_cluster|multi-node-serving|RAY_"
    r"|executor[-_]backend[\"', =]+ray\b"
)
# What may drop a script's variables, or give the server others: a text that another shell reads, sudo, a container.
OTHER_VARIABLES = re.compile(
    r"\b(?:sudo|eval|screen|tmux)\b|\b(?:ba|da|z)?sh[\"', \t]+-\w*c\b|\benv[ \t]+-|--export\b|ENV_CUDA_VISIBLE_DEVICES"
    r"|\b(?:apptainer|singularity)\b.*[ \t](?:-e|-c|-C|--cleanenv|--contain|--containall)\b"
)
GPUS = "gpus_given"  # what counts a server's GPUs, under its name in the format
# What starts a command on this machine, with its environment.
_HERE = ("apptainer", "singularity", "srun", "uvx", "conda", "mamba", "micromamba")
_CHOSEN = re.compile(r"\"device=([^\"]+)\"|device=([^\",]+)|(\d{1,3})")  # of `docker run --gpus`
_SAY = ("echo", "printf", "grep", "pkill", "logger")  # what is behind them is text
OTHER_DEVICES = ("cpu", "xpu", "hpu", "tpu", "npu", "neuron", "mps")
_OTHER_IMAGES = re.compile(r"ascend|neuron|gaudi|(?:^|[-_/:.])(?:tpu|rocm|hpu|xpu|npu|cpu)(?:$|[-_/:.])")
# Images whose own entry point is the server: what follows them are its flags.
_IMAGES = (
    (re.compile(r"(?:^|/)vllm/vllm-openai(?::|@|$)"), VLLM),
    (re.compile(r"(?:^|/)huggingface/text-generation-inference(?::|@|$)"), TGI),
    (re.compile(r"(?:^|/)gg(?:ml-org|erganov)/llama\.cpp:(?:server|full)"), LLAMA),
)
_MAKES = frozenset(("run", "create"))  # a container, of docker
# What `docker run` (podman, nerdctl) takes before the image without a word behind it.
_SWITCHES = (
    "--rm", "--detach", "--init", "--interactive", "--no-healthcheck", "--oom-kill-disable", "--privileged",
    "--publish-all", "--quiet", "--read-only", "--replace", "--tty",
)  # fmt: skip
_SHORT_SWITCHES = re.compile(r"-[ditPq]+|-[a-zA-Z].+")  # `-it`; `-p8000:8000` holds its own word
_OF_VLLM = ("--gpu-memory-utilization", "--max-model-len", "--tensor-parallel-size", "--max-num-seqs")
# Images whose tags are the server's own releases, wherever they are mirrored. Others have tags of their own: those of
# `nvcr.io/nvidia/vllm:25.09-py3` are months, those of `lmcache/vllm-openai:v0.3.14` LMCache's.
_RELEASED = re.compile(
    r"(?:^|/)(?:vllm/vllm-openai|lmsysorg/sglang|text-generation-inference):|^(?:[^/]*[.:][^/]*/)?vllm-openai:"
)
# Flags of vLLM that take no word behind them, and those that take several.
_HOLDS_ALL = re.compile(
    r"--?[\w.-]+=|-O.|--(?:no|enable|disable)-|--(?:trust-remote-code|enforce-eager|async-scheduling|headless"
    r"|skip-tokenizer-init|return-tokens-as-token-ids|language-model-only|calculate-kv-scales)$"
)
_LISTS = (
    "--served-model-name", "--lora-modules", "--api-key", "--middleware", "--logits-processors",
    "--cudagraph-capture-sizes", "--cuda-graph-sizes", "--limit-mm-per-prompt", "--prompt-adapters",
)  # fmt: skip
# What starts its command elsewhere: the project's own pins say nothing of the packages there.
_ELSEWHERE = re.compile(
    r"(?:\S*/)?(?:apptainer|singularity|enroot|kubectl|oc|ssh|uvx|pipx|(?:micro)?mamba|conda|modal)$"
    r"|--(?:container-image|with)\b|[~/].*/bin/"  # of `srun` with pyxis, of `uv run`; an environment by its place
)
_ACTIVATED = r"(.+)/(?:bin|Scripts)/activate\Z"
_WITH_ENVIRONMENTS = ("conda", "mamba", "micromamba", "pyenv", "source", ".")
_PREPARES = r"(?:env|activate)[\w-]*\.sh\Z"  # `source env.sh`: what it makes ready is not read
# `export PATH=/opt/v/bin:$PATH`, but of CUDA, the system and what a user has installed for every project
_ON_PATH = r"\bPATH=[\"']?(?![^\s:]*(?:cuda|/\.local/|=/usr/|\$PATH|\$\{PATH))[^\s:\"']+/bin[:\"']"
_OF_PROJECT = r"(?:\./)?\.?v?env[\w.-]*\Z"
_TAG = re.compile(r":v?([0-9]+(?:\.[0-9]+){1,3})(?:$|[-+@a-z]|\.[a-z])")


def server_of_image(image: str) -> Server | None:
    """The server that a container image starts by itself."""
    return next((server for pattern, server in _IMAGES if pattern.search(image)), None)


def own_image_of(image: str, flags: Sequence[Argument]) -> Server | None:
    """vLLM, where an image that someone built is called so and is given flags that only its server has."""
    name = image.rpartition("/")[2].partition(":")[0]
    return VLLM if "vllm" in name and any(flag.text in _OF_VLLM for flag in flags) else None


def release_of_image(image: str) -> str | None:
    """``0.8.5`` of ``vllm/vllm-openai:v0.8.5``; None where the tag says no release, or one of something else: of a
    team's own image, of llama.cpp's builds.
    """
    match = _TAG.search(image)
    return match[1] if match is not None and _RELEASED.search(image) is not None else None


def first_on_path(text: str) -> int:
    """Where a script first puts programs of a folder of its own before the others; behind its end where it does not."""
    found = re.search(_ON_PATH, text)
    return len(text) if found is None else found.start()


def other_environment(words: Sequence[Argument], text: str, before: Argument | None, on_path: int) -> Argument | None:
    """The word that activates an environment which is not the project's own: neither called so by its place nor made in
    this script; ``before`` where the command neither activates nor leaves one.
    """
    said = [each.text for each in words]
    if words and before is None and on_path < words[0].start:
        before = words[0]
    if "deactivate" in said[:2]:
        return None
    if said[:2] == ["module", "load"]:
        return next((each for each in words[2:] if (each.text or "").startswith(tuple(WITH_SUBCOMMAND))), before)
    if len(words) < 2 or said[0] not in _WITH_ENVIRONMENTS:
        return before
    first, last = (text[each.start : each.end].strip("\"'") for each in (words[1], words[-1]))
    place = re.match(_ACTIVATED, first)
    if re.search(_PREPARES, first):
        return words[1]
    if place is None and first != "activate":  # `conda activate x`, `source activate x`
        return before
    name = place[1] if place is not None else last
    made = re.search(rf"[\s/]{re.escape(name)}(?![\w/])", _makings(text))
    return None if made or (place is not None and re.match(_OF_PROJECT, name)) else words[-1]


@lru_cache(maxsize=1)  # of one script at a time, which may activate thousands
def _makings(text: str) -> str:
    """What a script says behind the words that make environments."""
    return "\n".join(re.findall(r"(?:\bvenv|\bvirtualenv|\bcreate)\b([^\n]*)", text))


class Started(NamedTuple):
    """A server about to run: its flags' arguments, the word that starts it, and the image that it runs in; ``inside``
    the process of a program that makes it by ``LLM()``.
    """

    server: Server
    rest: Sequence[Argument]
    word: Argument
    image: Argument | None = None
    inside: bool = False
    told: Mapping[str, str | None] = {}  # variables that the container is given

    @property
    def is_here(self) -> bool:
        """Whether it surely runs on this machine, with the script's environment."""
        return self.image is None or (self.image.text or "").rpartition("/")[2] in _HERE


def read_server(arguments: Sequence[Argument]) -> Started | None:
    """The server that these arguments start, in a container or not; None where they start something else, or one that
    computes on no GPU of NVIDIA's."""
    started = _read_any(arguments)
    if started is None or names_other_device(started.rest):
        return None
    if started.image is None:
        word = started.word
        started = started._replace(image=_entered([*takewhile(lambda each: each is not word, arguments), word]))
    return None if started.image is not None and is_of_other_device(started.image.text) else started


def is_of_other_device(image: str | None) -> bool:
    """Whether an image is made for something else than NVIDIA's GPUs: ``vllm/vllm-tpu:v0.25.0``."""
    return _OTHER_IMAGES.search((image or "").casefold()) is not None


def names_other_device(flags: Sequence[Argument]) -> bool:
    """Whether a server's flags put it on something else: ``--device cpu``."""
    texts = [flag.text or "" for flag in flags]
    named = [text.partition("=")[2] for text in texts if text.startswith("--device=")]
    named += [after for text, after in pairwise(texts) if text == "--device"]
    return any(each.partition(":")[0] in OTHER_DEVICES for each in named)


def _entered(words: Sequence[Argument]) -> Argument | None:
    """Of the words up to a server's own that enter a container, another host or an environment of its own (`ssh host`,
    `uvx --from vllm==0.18.0`, `/opt/x/bin/vllm`) the one that names its release, else the first; None where none does.
    """
    untold = any(each.text is None and after.text != "-m" for each, after in pairwise(words))  # `$RUN`, not `$PYTHON`
    if not untold and not any(_ELSEWHERE.match(each.text or "") for each in words):
        return None
    return next((each for each in words if release_of_image(each.text or "") is not None), words[0])


def _read_any(arguments: Sequence[Argument]) -> Started | None:
    for at, argument in enumerate(arguments):
        text = argument.text or ""
        name = text.rpartition("/")[2]
        rest = arguments[at + 1 :]
        if at == 0 and (name in _SAY or name.endswith((".py", *SHELL))):
            return None
        if name in ("docker", "podman", "nerdctl"):
            return _in_container(rest)
        if name in PROGRAMS:
            return Started(PROGRAMS[name], rest, argument)
        if name in WITH_SUBCOMMAND:
            serves = rest and rest[0].text == "serve"
            return Started(WITH_SUBCOMMAND[name], rest[1:], argument) if serves else None
        if text == "-m" and rest and rest[0].text in MODULES:
            return Started(MODULES[rest[0].text or ""], rest[1:], rest[0])
        if name in HARNESSES:
            return _in_harness(rest, argument)
    return None


def _in_harness(rest: Sequence[Argument], word: Argument) -> Started | None:
    """vLLM in the process that evaluates, where that is told to use it, and with what, in one word or several; None of
    a JSON object, and of words that only the run can tell.
    """
    engine, given = "", list[tuple[Argument, str]]()  # each word, and what of it belongs to the flag
    for at, each in enumerate(rest):
        name, equals, value = (each.text or "").partition("=")
        follow = takewhile(lambda one: not (one.text or one.begins).startswith("-"), rest[at + 1 :])
        behind = [(each, value)] if equals else [(one, one.text or "") for one in follow]
        if name in ("--model", "-M"):
            engine = behind[0][1] if behind else ""
        elif name in ("--model_args", "-a"):
            given = behind
    if engine != "vllm" or not given or any(one.text is None or "{" in one.text for one, _ in given):
        return None
    pairs = [pair for one, text in given for pair in _pairs(one, text)]
    both = {"--max_length", "--max_model_len"} <= {name.text for name, _ in pairs}  # it takes one of the two
    kept = [(name, value) for name, value in pairs if not (both and name.text == "--max_length")]
    words = [part for name, value in kept for part in (_of_vllm(name), value)]
    return Started(VLLM, words, word, inside=True)


def _of_vllm(name: Argument) -> Argument:
    return name._replace(text=_OF_HARNESS.get(name.text or "", name.text))


def _pairs(word: Argument, text: str) -> Iterator[tuple[Argument, Argument]]:
    """The flag and the value of each ``name=value``, at their places where the word stands there as it is."""
    beside = word.end - word.start - len(word.text or "")  # of two quotation marks
    known = not word.shared and beside in (0, 2)
    at = word.end - len(text) - beside // 2 if known else word.start
    for pair in text.split(","):
        name, _, value = pair.partition("=")
        middle, end = (at + len(name), at + len(pair)) if known else (word.end, word.end)
        part = word._replace(start=at, end=middle, from_variable=True)
        if name.strip():
            behind = part._replace(text=value.strip(), start=min(middle + 1, end) if known else at, end=end)
            yield part._replace(text=f"--{name.strip()}"), behind
        at += len(pair) + 1 if known else 0


def _inline(argument: Argument, name: str) -> bool:
    return (argument.text or "").startswith(name + "=")


def _in_container(arguments: Sequence[Argument]) -> Started | None:
    """``docker run … IMAGE flags``; a command behind the image counts in place of the image's own."""
    first = [argument.text for argument in arguments[:3]]
    if _MAKES.isdisjoint(first):
        at = first.index("exec") if "exec" in first else len(arguments)
        inner = _read_any(arguments[at + 1 :])
        return inner._replace(image=arguments[at]) if inner is not None else None
    for at, argument in enumerate(arguments):
        text = argument.text or ""
        server = server_of_image(text) if not text.startswith("-") else None
        if server is None and "/lmsysorg/sglang" not in f"/{text}":
            continue
        rest, entry, told = arguments[at + 1 :], _entry_point(arguments[:at]), _variables_in(arguments[:at])
        inner = read_server(rest if entry is None else (entry, *rest))
        if inner is not None:
            return inner._replace(image=argument, told=told)
        if server is None or entry is not None:
            return None
        return Started(server, rest, argument, argument, told=told)
    return _in_own_image(arguments)


def _variables_in(before: Sequence[Argument]) -> dict[str, str | None]:
    """What `docker run` hands the container: ``-e NAME=value``, and the number of ``--gpus``; None of what a
    variable of the shell says, or a file of variables may."""
    pairs = (each.partition("=") for name in ("-e", "--env") for each in _given(before, name))
    found: dict[str, str | None] = dict.fromkeys(TGI_VARIABLES) if _given(before, "--env-file") else {}
    found |= {name: value if equals else None for name, equals, value in pairs if name}
    left = (after for flag, after in pairwise(before) if flag.text in ("-e", "--env") and after.text is None)
    found |= {each.begins.partition("=")[0]: None for each in left if each.begins}
    chosen = [_CHOSEN.fullmatch(each) for each in _given(before, "--gpus")]
    if len(chosen) == 1 and (match := chosen[0]) is not None:
        found[GPUS] = match[3] or str(len((match[1] or match[2]).split(",")))
    return found


def _given(before: Sequence[Argument], name: str) -> list[str]:
    """The values of an option."""
    found = [after.text or "" for flag, after in pairwise(before) if flag.text == name]
    return found + [(each.text or "")[len(name) + 1 :] for each in before if _inline(each, name)]


def _entry_point(before: Sequence[Argument]) -> Argument | None:
    """What runs in place of the image's own program: ``--entrypoint bash``; its arguments follow the image."""
    named = [after for flag, after in pairwise(before) if flag.text == "--entrypoint"]
    named += [each._replace(text=(each.text or "")[13:]) for each in before if _inline(each, "--entrypoint")]
    return named[-1] if named else None


def _in_own_image(arguments: Sequence[Argument]) -> Started | None:
    """``docker run … IMAGE vllm serve …`` of an image that someone built, or whose name only the environment knows."""
    at = next(at for at, argument in enumerate(arguments) if argument.text in _MAKES) + 1
    while at < len(arguments):
        image, rest = arguments[at], arguments[at + 1 :]
        text = image.text or ""
        if not text.startswith("-"):
            inner = read_server(rest)
            if inner is not None:
                return inner._replace(image=image, told=_variables_in(arguments[:at]))
            server = own_image_of(text, rest)
            told = _variables_in(arguments[:at])
            return Started(server, rest, image, image, told=told) if server is not None else None
        alone = text.startswith("--") and ("=" in text or text in _SWITCHES)
        at += 1 if alone or (not text.startswith("--") and _SHORT_SWITCHES.fullmatch(text)) else 2
    return None


def spelt_out(started: Started) -> list[Argument]:
    """The server's arguments with flags of one dash under their long names, and its model as ``--model``."""
    long = started.server.short
    found = [argument._replace(text=long.get(argument.text or "", argument.text)) for argument in started.rest]
    leads = started.word is started.image and names_model(started.server, found)
    at = 0 if leads else _place_of_model(found) if started.server.model else None
    if at is not None:
        found.insert(at, Argument("--model", found[at].start, found[at].start, found[at].shared, True))
    return found


def names_model(server: Server, words: Sequence[Argument]) -> bool:
    """Whether the words for vLLM's own image begin with a model of the hub: its entry point is `vllm serve`."""
    first = (words[0].text or "") if words and server is VLLM else ""
    return re.match(r"\w[\w.-]*/[\w.-]+\Z", first) is not None and not first.endswith((".py", *SHELL))


def _place_of_model(words: Sequence[Argument]) -> int | None:
    """Where `vllm serve` is told its model: the first word that no flag before it takes, as argparse reads them."""
    takes = 0
    for at, each in enumerate(words):
        written = each.text or each.begins
        if re.match(r"--?[A-Za-z]", written):
            alone = _HOLDS_ALL.match(written) is not None
            takes = len(words) if written in _LISTS else 0 if alone else 1
        elif takes or each.options or written.casefold() in ("true", "false"):
            takes -= bool(takes)
        else:
            return at
    return None
