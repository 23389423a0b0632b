"""A check's result made by hand: two sections of one Korean config, every kind of finding, a prediction that is tight.

The figures are of no real run: they only have to add up.
"""

import os
import re

from kb.core.catalog import Computed, Rule, RuleFix, Wording
from kb.core.document import Setting, Unit
from kb.core.facts import FactType
from kb.core.finding import Edit, Finding, Fix, NotEvaluated, Span, Suppression
from kb.core.hardware import DetectedGpu, Gpu, Machine
from kb.core.memory_report import HostLedger, MemoryReport, Phase, Term, Verdict
from kb.core.model import Architecture, Model
from kb.core.result import CheckResult, GpuFit, UnitResult, Unusable
from kb.core.setup import Assumption, TrainingSetup
from kb.core.text import Text
from kb.core.units import GIB, MIB
from kb.report.words import Words
from yaml_file import read_yaml

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# A particle whose form depends on the sound before it must not follow a placeholder.
PARTICLE = re.compile(
    r"\}(?:은|는|이|가|을|를|과|와|으로|로|이나|나|이며|이고|이다|입니다|이라|라|아|야)(?=[\s.,;:)]|$)"
)
PATH = "configs/실험 1.yaml"
CONFIG = """\
# 요약 모델 실험
t5:
  general: {model_name: google/mt5-base}
  training:
    per_device_train_batch_size: 20  # 🔥 24→20
    gradient_accumulation_steps: 2   # 유효 배치 48 유지
    설명: "한글🔥"  ; fp16: true
\tfp16: true\t# 탭
    dataloader_num_workers: 32
    learning_rate: 5e-5
bart:
  general: {model_name: digit82/kobart-summarization}
"""

NOWHERE = Text("", "")


def span(text: str, within: str = CONFIG) -> Span:
    """Where ``text`` first stands in the config."""
    start = within.index(text)
    line = within.count("\n", 0, start) + 1
    column = start - (within.rfind("\n", 0, start) + 1) + 1
    return Span(line, column, line, column + len(text), start, start + len(text))


def setting(key: str, value: object, written: str) -> Setting:
    whole = span(written)
    key_span = Span(whole.line, whole.column, whole.line, whole.column + len(key))
    value_at = written.index(":") + 2
    value_span = Span(whole.line, whole.column + value_at, whole.line, whole.end_column)
    return Setting(value=value, span=value_span, key_span=key_span, path=("t5", "training", key))


def fact(name: str, kind: str, ko: str, en: str, **more: object) -> FactType:
    return FactType(name=name, type=kind, meaning=Text(ko, en), **more)  # type: ignore[arg-type]


FACTS = {
    one.name: one
    for one in (
        fact("model.family", "text", "모델 계열", "the model family"),
        fact("model.name", "text", "허브의 모델 이름", "the model's hub name", setting=True),
        fact("training.fp16", "bool", "fp16 자동 혼합 정밀도", "fp16 autocast", setting=True, default=False),
        fact("training.bf16", "bool", "bf16 자동 혼합 정밀도", "bf16 autocast", setting=True, default=False),
        fact("training.per_device_train_batch_size", "integer", "장치별 배치", "batch per device", setting=True,
             default=8, unit="samples"),
        fact("training.gradient_accumulation_steps", "integer", "누적 스텝", "accumulation", setting=True,
             default=1, unit="steps"),
        fact("training.dataloader_num_workers", "integer", "워커 수", "workers", setting=True, default=0,
             unit="processes"),
        fact("written.training.fp16", "bool", "fp16을 적었는지", "whether fp16 is written"),
        fact("batch.effective", "integer", "유효 배치", "the effective batch size", unit="samples"),
        fact("batch.said", "integer", "주석의 유효 배치", "the effective batch size of the comment", unit="samples"),
        fact("memory.host.peak", "bytes", "호스트 메모리의 최대", "peak host memory", unit="B"),
        fact("host.memory_limit", "bytes", "컨테이너 메모리 한도", "the container's memory limit", unit="B"),
        fact("fit.accumulation_as_said", "integer", "주석에 맞는 누적", "the comment's accumulation", unit="steps"),
        fact("gpu.compute_capability", "version", "연산 능력", "compute capability"),
    )
}  # fmt: skip


def rule(title: Text, message: Text, fixes: tuple[RuleFix, ...], **rest: object) -> Rule:
    return Rule(wording=lambda: Wording(title, message, fixes), **rest)


T5_RULE = rule(
    id="t5-fp16-overflow",
    version=1,
    since="0.1.0",
    severity="error",
    confidence="high",
    area="precision",
    when=["and", ["compare", ["in"], ["fact", "model.family"], ["lit", ["t5", "mt5"]]], ["fact", "training.fp16"]],
    on=None,
    at=("training.fp16",),
    title=Text("T5 계열에 fp16", "fp16 on a T5-family model"),
    message=Text(
        "{model.name} 모델의 활성값이 fp16의 최댓값 65504를 넘어 손실이 NaN이 될 수 있습니다.",
        "{model.name}: activations can exceed fp16's maximum, 65504, and the loss turns NaN.",
    ),
    fixes=(
        RuleFix(
            when=["compare", [">="], ["fact", "gpu.compute_capability"], ["lit", [8, 0]]],
            safety="safe",
            title=Text("bf16으로 학습합니다.", "Train in bf16."),
            set={"training.fp16": False, "training.bf16": True},
        ),
    ),
    source='model.family in ["t5", "mt5"] and training.fp16',
    why=Text(
        "T5와 mT5의 공개 가중치는 bf16으로 사전학습되었습니다. 피드포워드 층의 출력이 "
        "fp16이 담을 수 있는 가장 큰 수 65504를 넘어 무한대가 되고, "
        "다음 층에서 NaN이 됩니다. 손실이 갑자기 0이나 NaN으로 찍히면 이 경우입니다.",
        "The public weights of T5 and mT5 were pretrained in bf16. The output of a feed-forward layer can exceed "
        "65504, the largest number that fp16 holds; it becomes infinite, and NaN one layer later.",
    ),
    sources=("hf-10956",),
    examples=(
        {"expect": "fires", "gpu": "rtx-3090", "config": "general: {model_name: google/mt5-base}\n"},
        {"expect": "silent", "config": "training: {bf16: true}\n"},
    ),
)
BATCH_RULE = rule(
    id="effective-batch-not-as-said",
    version=1,
    since="0.1.0",
    severity="warning",
    confidence="medium",
    area="batch",
    when=["compare", ["!="], ["fact", "batch.effective"], ["fact", "batch.said"]],
    on=None,
    at=("training.gradient_accumulation_steps",),
    title=Text("주석과 다른 유효 배치", "The effective batch is not the comment's"),
    message=Text(
        "유효 배치는 {batch.effective}이고, 주석의 {batch.said} 값과 다릅니다.",
        "The effective batch is {batch.effective}, not the {batch.said} of the comment.",
    ),
    fixes=(
        RuleFix(
            when=None,
            safety="unsafe",
            title=Text("누적을 주석에 맞춥니다.", "Accumulate as the comment says."),
            set={"training.gradient_accumulation_steps": Computed(["fact", "fit.accumulation_as_said"])},
        ),
    ),
    why=Text("한 업데이트에 드는 표본 수입니다.", "It is the number of samples in one update."),
)
NUMBER_RULE = rule(
    id="number-read-as-text",
    version=2,
    since="0.1.0",
    severity="info",
    confidence="high",
    area="text",
    when=None,
    on="number-as-text",
    at=(),
    title=Text("문자열로 읽히는 숫자", "A number that is read as text"),
    message=Text("{raw} 값은 문자열로 읽힙니다.", "{raw} is read as text."),
    fixes=(RuleFix(when=None, safety="safe", title=Text("점을 넣습니다.", "Write the dot."), set={}),),
    why=Text("YAML 1.1의 실수에는 점이 있어야 합니다.", "A float of YAML 1.1 needs a dot."),
)
HOST_RULE = rule(
    id="host-memory-over-limit",
    version=1,
    since="0.1.0",
    severity="error",
    confidence="medium",
    area="fit",
    when=["compare", [">"], ["fact", "memory.host.peak"], ["fact", "host.memory_limit"]],
    on=None,
    at=("training.dataloader_num_workers",),
    title=Text("컨테이너 한도를 넘는 호스트 메모리", "Host memory over the container's limit"),
    message=Text(
        "호스트 메모리가 최대 {memory.host.peak:GiB}, 한도는 {host.memory_limit:GiB}입니다.",
        "Host memory peaks at {memory.host.peak:GiB}; the limit is {host.memory_limit:GiB}.",
    ),
    fixes=(),
    why=Text("", ""),
)
RULES = {rule.id: rule for rule in (T5_RULE, BATCH_RULE, NUMBER_RULE, HOST_RULE)}
SOURCES = {
    "hf-10956": {
        "title": "huggingface/transformers #10956",
        "url": "https://github.com/huggingface/transformers/pull/10956",
    }
}

RTX_3090 = Gpu(
    id="rtx-3090",
    name="NVIDIA GeForce RTX 3090",
    memory_total=24576 * MIB,
    compute_capability=(8, 6),
    native_bf16=True,
)
T4 = Gpu(id="t4", name="T4", memory_total=15360 * MIB, compute_capability=(7, 5), native_bf16=False)
V100 = Gpu(id="v100-16gb", name="V100 16GB", memory_total=16384 * MIB, compute_capability=(7, 0), native_bf16=False)
A100 = Gpu(id="a100-80gb", name="A100 80GB", memory_total=81920 * MIB, compute_capability=(8, 0), native_bf16=True)
MACHINE = Machine(
    gpus=(DetectedGpu(number=0, name="NVIDIA GeForce RTX 3090", memory_total=24576 * MIB, gpu=RTX_3090,
                      compute_capability=(8, 6), processes=((4242, 3 * GIB),)),),
    gpu_source="nvml",
    host_memory_bytes=60 * 10**9,
    host_memory_source="named",
    cpus=48,
    cpu_source="named",
)  # fmt: skip


def phase(name: str, moment: str, low: float, high: float, **terms: float) -> Phase:
    held = tuple(Term(term, round(gib * GIB)) for term, gib in terms.items())
    allocated = sum(term.bytes for term in held)
    reserved = round(allocated * 1.08)
    return Phase(
        name=name,  # type: ignore[arg-type]
        terms=held,
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=reserved,
        process_used_bytes=reserved + 450 * MIB,
        low_bytes=round(low * GIB),
        high_bytes=round(high * GIB),
        moment=moment,
    )


HOST = HostLedger(
    terms=(
        Term("host_process", 14 * GIB),
        Term("workers", 64 * GIB),
        Term("pinned", 50 * MIB),
    ),
    low_bytes=54 * GIB,
    peak_bytes=78 * GIB + 50 * MIB,
    limit_bytes=60 * 10**9,
    measured=(Term("host_process", 4 * GIB), Term("workers", 50 * GIB)),
    claimed_low_bytes=63 * 10**9,
    claimed_high_bytes=91 * 10**9,
)
PREDICTION = MemoryReport(
    level="rough",
    assumed=(
        Assumption(name="model.attn_implementation", value="sdpa", reason="library_default"),
        Assumption(name="training.optim", value="adamw_torch_fused", reason="library_default"),
        Assumption(name="data.max_source_length", value=512, reason="usual_length"),
    ),
    phases=(
        phase("load", "loading", 2.4, 3.0, parameters=2.17),
        phase("train", "forward", 19.6, 25.1, parameters=2.17, optimizer=4.34, activations_encoder=5.2,
              activations_decoder=3.9, activations_head=3.1, loss=1.9, workspace=0.016),
        phase("generate", "decoding", 11.0, 12.9, parameters=2.17, optimizer=4.34, kv_cache_self=1.1,
              kv_cache_cross=2.6, logits=0.7),
    ),
    host=HOST,
    verdict=Verdict(status="tight", phase="train", term="activations_encoder"),
)  # fmt: skip
MODEL = Model(
    id="mt5-base",
    name="google/mt5-base",
    architecture=Architecture(family="t5", model_type="mt5", d_model=768, d_ff=2048, num_heads=12, d_kv=64,
                              encoder_layers=12, decoder_layers=12, vocab_size=250112, gated=True, tied=False),
    parameters=582401280,
)  # fmt: skip

FP16_SPAN = Span(8, 8, 8, 12)
T5_UNIT = Unit(
    path=PATH,
    section="t5",
    dialect="team",
    settings={
        "training.fp16": Setting(
            value=True, span=FP16_SPAN, key_span=Span(8, 2, 8, 6), path=("t5", "training", "fp16")
        ),
        "training.per_device_train_batch_size": setting(
            "per_device_train_batch_size", 20, "per_device_train_batch_size: 20"
        ),
        "training.gradient_accumulation_steps": setting(
            "gradient_accumulation_steps", 2, "gradient_accumulation_steps: 2"
        ),
        "training.dataloader_num_workers": setting("dataloader_num_workers", 32, "dataloader_num_workers: 32"),
    },
    span=Span(2, 1, 10, 24),
)
FINDINGS = (
    Finding(
        rule="effective-batch-not-as-said",
        severity="warning",
        confidence="medium",
        message=BATCH_RULE.message,
        span=span("2   #").__class__(6, 34, 6, 35),
        facts={"batch.effective": 40, "batch.said": 48, "training.per_device_train_batch_size": 20,
               "training.gradient_accumulation_steps": 2},
        related=(("training.per_device_train_batch_size", span("20  #").__class__(5, 34, 5, 36)),),
        fixes=(Fix(safety="unsafe", title=BATCH_RULE.fixes[0].title,
                   edits=(Edit("set", "training.gradient_accumulation_steps", 3),)),),
    ),
    Finding(
        rule="t5-fp16-overflow",
        severity="error",
        confidence="high",
        message=T5_RULE.message,
        span=FP16_SPAN,
        facts={"model.family": "mt5", "model.name": "google/mt5-base", "training.fp16": True,
               "written.training.fp16": True},
        fixes=(
            Fix(safety="safe", title=Text("bf16으로 학습합니다.", "Train in bf16."),
                edits=(Edit("set", "training.fp16", False), Edit("set", "training.bf16", True))),
            Fix(safety="unsafe", title=Text("fp32로 학습합니다.", "Train in fp32."),
                edits=(Edit("remove", "training.fp16"),)),
        ),
    ),
    Finding(
        rule="host-memory-over-limit",
        severity="error",
        confidence="medium",
        message=HOST_RULE.message,
        span=Span(9, 29, 9, 31),
        facts={"memory.host.peak": 78 * GIB + 50 * MIB, "host.memory_limit": 60 * 10**9},
        suppressed=Suppression(kind="comment", reason="새 서버, 한도 256GB", until="2027-01-31", line=9),
    ),
    Finding(
        rule="number-read-as-text",
        severity="info",
        confidence="high",
        message=NUMBER_RULE.message,
        span=Span(10, 20, 10, 24),
        facts={"key": "learning_rate", "raw": "5e-5", "meant": "5.0e-5"},
        fixes=(Fix(safety="safe", title=NUMBER_RULE.fixes[0].title,
                   edits=(Edit("replace", "", "5.0e-5", Span(10, 20, 10, 24)),)),),
    ),
)  # fmt: skip
NOT_EVALUATED = (
    NotEvaluated(rule="renamed-evaluation-strategy", needs=("versions.transformers",)),
    NotEvaluated(rule="renamed-tokenizer", needs=("versions.transformers",)),
    NotEvaluated(rule="shm-too-small", needs=("host.shm",)),
    NotEvaluated(rule="eval-steps-after-save", needs=("training.eval_steps",)),
)


# Where the GPU is not known: bf16 may be right, and nobody can say so.
WAITING = FINDINGS[1]._replace(
    fixes=(
        FINDINGS[1].fixes[0]._replace(certain=False, when=T5_RULE.fixes[0].when, needs=("gpu.compute_capability",)),
        FINDINGS[1].fixes[1],
    )
)
UNUSABLE = (
    Unusable(path="없는 것.yaml", key="config.missing", values={}),
    Unusable(path="b:1.yaml", key="config.yaml-syntax", values={"problem": "50%"}, line=3, column=7),
    Unusable(path="", key="config.none-recognised", values={}),
)


def words(language: str) -> Words:
    return Words(language, read_yaml(os.path.join(ROOT, "i18n", f"{language}.yaml")), FACTS)


def t5_result() -> UnitResult:
    return UnitResult(
        unit=T5_UNIT,
        setup=TrainingSetup(model_name="google/mt5-base", fp16=True, per_device_train_batch_size=20,
                            gradient_accumulation_steps=2, assumed=PREDICTION.assumed),
        model=MODEL,
        prediction=PREDICTION,
        findings=FINDINGS,
        not_evaluated=NOT_EVALUATED,
        gpu_limit_bytes=24576 * MIB,
    )  # fmt: skip


def bart_result() -> UnitResult:
    unit = Unit(path=PATH, section="bart", dialect="team", settings={}, span=Span(11, 1, 12, 55))
    return UnitResult(
        unit=unit,
        setup=TrainingSetup(model_name="digit82/kobart-summarization"),
        note="model_not_known",
        note_values={"model": "digit82/kobart-summarization"},
    )


def check_result(*units: UnitResult, machine: Machine = MACHINE) -> CheckResult:
    return CheckResult(
        machine=machine,
        units=units or (t5_result(), bart_result()),
        sources_text={PATH: CONFIG},
        version="0.1.0",
        rules_version="1.60",
    )


def without_gpu() -> CheckResult:
    """The same config on a machine without a GPU: four known GPUs, one too small, one tight, one that fits."""

    def fit(gpu: Gpu, status: str) -> GpuFit:
        verdict = Verdict(status=status, phase="train", term="activations_encoder")  # type: ignore[arg-type]
        used = PREDICTION.phases[1].process_used_bytes
        return GpuFit(gpu=gpu, verdict=verdict, process_used_bytes=used, limit_bytes=gpu.memory_total)

    prediction = PREDICTION._replace(verdict=Verdict(status="unknown", phase="train", term="activations_encoder"))
    unit = t5_result()._replace(
        prediction=prediction,
        gpu_limit_bytes=None,
        gpu_fits=(fit(A100, "fits"), fit(T4, "oom"), fit(V100, "oom"), fit(RTX_3090, "tight")),
    )
    return check_result(unit, machine=Machine(host_memory_bytes=60 * 10**9, host_memory_source="cgroup-v2"))
