"""What embedding training takes under the simulation (level 1), beside the memory engine's figure for the same steps.

    python bench/embedding.py '{"model_type": "bert", …}' bf16=true post.columns=3 post.cached=4

An encoder of transformers, mean or first-token pooling, and MultipleNegativesRankingLoss or its cached form (GradCache)
as sentence-transformers 6.2.0 has them: base/modules/transformer.py, sentence_transformer/modules/pooling.py and
losses/multiple_negatives_ranking.py, base/losses/gradcache.py and merged_forward.py, util/similarity.py. Their lines
that touch tensors are repeated here, with their names; what only other options reach is left out. Every column of the
data is as long as the setup says.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from engine_diff import Act, acts_of, compare_acts, followed

from kb.core.setup import PostTraining, TrainingSetup
from kb.core.setup_json import setup_from

Peaks = dict[str, tuple[int, int]]
SCALE = 20.0


def simulated(config: Mapping[str, Any], setup: TrainingSetup, capability: tuple[int, int]) -> tuple[list[Act], Peaks]:
    """The allocator's acts, and its peaks by phase."""
    import transformers

    from kb.torch_runs import models
    from kb.torch_runs.simulation.loading import build_model
    from kb.torch_runs.simulation.session import open_session
    from kb.torch_runs.simulation.timeline import peaks_of
    from kb.torch_runs.simulation.training import as_accelerate

    chosen = models.model_class
    models.model_class = lambda *_: transformers.AutoModel
    try:
        with open_session(capability=capability, bits_and_bytes=setup.method != "full") as tracer:
            _composed(tracer)
            tracer.padded = setup.padded
            tracer.phase = "load"
            encoder: Any = build_model(config, setup, tracer)
            model = _bi_encoder(encoder, setup)
            if setup.autocast:
                as_accelerate(model, "float16" if setup.fp16 else "bfloat16")
            _train(model, setup, tracer)
            tracer.phase = "ended"
            ended = next((n for n, event in enumerate(tracer.events) if event.phase == "ended"), len(tracer.events))
            events = list(tracer.events[:ended])
    finally:
        models.model_class = chosen
    found = peaks_of(events)
    peaks = {name: (each.allocated_bytes, each.reserved_bytes) for name, each in found.items()}
    return acts_of(events), {name: peaks[name] for name in ("load", "train") if name in peaks}


def _composed(tracer: Any) -> None:
    """What CUDA composes of other operators, which a fake tensor sees as one.

    Sources: ``logsumexp_out_impl`` (ATen/native/ReduceOps.cpp); gradients of indexing are put into zeros, in place.
    """
    import torch

    aten = torch.ops.aten

    def logsumexp(_: Any, scores: Any, dim: Any, *__: Any) -> Any:
        maxes = torch.amax(scores, dim, True)
        squeezed = maxes.squeeze(dim)
        squeezed.masked_fill_(squeezed.abs() == torch.inf, 0)
        out = (scores - maxes).exp_().sum(dim)
        return out.log_().add_(squeezed)

    tracer.replaced[aten.logsumexp.default] = logsumexp
    tracer.replaced[aten.scatter_add.default] = lambda _, *args, **given: aten.scatter_add_.default(*args, **given)
    tracer.replaced[aten.index_put.default] = lambda _, *args, **given: aten.index_put_.default(*args, **given)


def _bi_encoder(encoder: Any, setup: TrainingSetup) -> Any:
    """``SentenceTransformer``: the transformer, its pooling, and a module that normalizes where there is one."""
    import torch

    assert setup.post is not None
    first, normalizes = setup.post.pooling == "cls", setup.post.normalizes

    class BiEncoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder
            self.config = encoder.config

        def forward(self, features: dict[str, Any]) -> dict[str, Any]:
            features = self.embedded(features)
            features = self.pooled(features)
            if normalizes:
                features["sentence_embedding"] = torch.nn.functional.normalize(
                    features["sentence_embedding"], p=2, dim=-1
                )
            return features

        def embedded(self, features: dict[str, Any]) -> dict[str, Any]:
            given = {name: features[name] for name in ("input_ids", "attention_mask")}
            model_output = self.encoder(**given, return_dict=True)
            embedding = model_output["last_hidden_state"]
            features["token_embeddings"] = embedding
            return features

        def pooled(self, features: dict[str, Any]) -> dict[str, Any]:
            output_vectors = self.vectors(features["token_embeddings"], features["attention_mask"])
            features["sentence_embedding"] = torch.cat(output_vectors, dim=-1)
            return features

        def vectors(self, token_embeddings: Any, attention_mask: Any) -> list[Any]:
            output_vectors: list[Any] = []
            if first:
                hidden_dim = token_embeddings.shape[-1]
                first_indices = attention_mask.to(torch.int).argmax(dim=1)
                gather_indices = first_indices.unsqueeze(-1).unsqueeze(1).expand(-1, 1, hidden_dim)
                output_vectors.append(torch.gather(token_embeddings, 1, gather_indices).squeeze(1))
                return output_vectors
            half = token_embeddings.dtype in (torch.float16, torch.bfloat16)
            accumulation_dtype = torch.float32 if half else token_embeddings.dtype
            mask = attention_mask.unsqueeze(-1).to(token_embeddings.dtype)
            mean_sum = (token_embeddings * mask).sum(dim=1, dtype=accumulation_dtype)
            mean_mask = mask.sum(dim=1, dtype=accumulation_dtype)
            mean_mask = torch.clamp(mean_mask, min=1e-9)
            mean_embedding = mean_sum / mean_mask
            mean_embedding = mean_embedding.to(token_embeddings.dtype)
            output_vectors.append(mean_embedding)
            return output_vectors

    return BiEncoder()


def _cos_sim(a: Any, b: Any) -> Any:
    import torch

    a, b = (each.to(torch.float32) if each.dtype != torch.float32 else each for each in (a, b))
    a_norm = torch.nn.functional.normalize(a, p=2, dim=-1)
    b_norm = torch.nn.functional.normalize(b, p=2, dim=-1)
    return torch.mm(a_norm, b_norm.transpose(0, 1))


def _embed_columns(model: Any, features_list: list[dict[str, Any]], separate_first: bool = True) -> list[Any]:
    """``embed_columns``: the anchors by themselves, candidates of one width together."""
    import torch

    if separate_first:
        return [
            model(features_list[0])["sentence_embedding"],
            *_embed_columns(model, features_list[1:], separate_first=False),
        ]
    if len(features_list) == 1:
        return [model(features)["sentence_embedding"] for features in features_list]
    merged = {name: torch.cat([features[name] for features in features_list], dim=0) for name in features_list[0]}
    embeddings = model(merged)["sentence_embedding"]
    return list(embeddings.reshape(len(features_list), -1, *embeddings.shape[1:]).unbind(0))


def _ranking_loss(embeddings: list[Any]) -> Any:
    """``MultipleNegativesRankingLoss.compute_loss_from_embeddings``: from queries to documents alone."""
    import torch

    queries = embeddings[0]
    docs = embeddings[1:]
    batch_size = queries.size(0)
    docs_all = torch.cat(docs, dim=0)
    docs_pos = docs[0]
    local_indices = torch.arange(0, batch_size, device=queries.device)
    row_indices = torch.arange(batch_size, device=queries.device)
    local_queries = queries[local_indices]
    local_docs = docs_pos[local_indices]
    sim_matrices = {}
    sim_matrices["query_to_doc"] = _cos_sim(local_queries, docs_all)
    for key in sim_matrices:
        sim_matrices[key] = sim_matrices[key] * SCALE
    positive_scores = sim_matrices["query_to_doc"][row_indices, local_indices]
    scores = torch.cat(list(sim_matrices.values()), dim=1)
    log_z = torch.logsumexp(scores, dim=1)
    loss = -(positive_scores - log_z).mean()
    del local_docs
    return loss


def _create_minibatch(feature: dict[str, Any], begin: int, end: int) -> dict[str, Any]:
    """Rows of a column, which no token is cut off: none is padding. Which columns are is asked of the GPU."""
    import torch

    active = feature["attention_mask"][begin:end].bool()
    active_columns = active.any(dim=0)
    bool(active_columns.any())
    places = torch.zeros((active_columns.shape[0], 1), dtype=torch.long, device="cuda")  # active_columns.nonzero()
    int(places.max().item())
    del places
    return {name: value[begin:end] for name, value in feature.items()}


def _cached_loss(model: Any, sentence_features: list[dict[str, Any]], size: int) -> Any:
    """``CachedLossMixin.forward_cached``, without the states of random numbers, which lie on the host."""
    import torch

    ranges = [(begin, min(begin + size, len(sentence_features[0]["input_ids"])))
              for begin in range(0, len(sentence_features[0]["input_ids"]), size)]  # fmt: skip

    def embed(feature: dict[str, Any], with_grad: bool) -> Iterator[Any]:
        for begin, end in ranges:
            mini = _create_minibatch(feature, begin, end)
            with torch.set_grad_enabled(with_grad):
                reps = model(mini)["sentence_embedding"]
            del mini  # embed_minibatch returns
            yield reps

    reps = []
    for feature in sentence_features:
        reps_mbs = [reps_mb.detach().requires_grad_() for reps_mb in embed(feature, False)]
        reps.append(reps_mbs)
    loss = _chunked_loss(reps, size)
    loss = loss.detach().requires_grad_()
    cache = [[rep.grad for rep in rep_mbs] for rep_mbs in reps]

    def backward_hook(grad_output: Any) -> None:
        with torch.enable_grad():
            for feature, grad in zip(sentence_features, cache, strict=True):
                iterator = embed(feature, True)
                for grad_mb in grad:
                    reps_mb = next(iterator)
                    wide = torch.promote_types(torch.promote_types(reps_mb.dtype, grad_mb.dtype), torch.float32)
                    surrogate = torch.dot(reps_mb.flatten().to(wide), grad_mb.flatten().to(wide)) * grad_output
                    surrogate.backward()

    loss.register_hook(backward_hook)
    return loss


def _chunked_loss(reps: list[list[Any]], size: int) -> Any:
    """``CachedMultipleNegativesRankingLoss.calculate_loss``, with its backward pass chunk by chunk."""
    import torch

    queries = torch.cat(reps[0])
    docs = [torch.cat(r) for r in reps[1:]]
    batch_size = len(queries)
    docs_all = torch.cat(docs, dim=0)
    docs_pos = docs[0]
    local_indices = torch.arange(0, batch_size, device=queries.device)
    losses = []
    for begin in range(0, batch_size, size):
        end = min(begin + size, batch_size)
        local_batch = local_indices[begin:end]
        row_indices = torch.arange(len(local_batch), device=queries.device)
        local_queries = queries[local_batch]
        local_docs = docs_pos[local_batch]
        sim_matrices = {}
        sim_matrices["query_to_doc"] = _cos_sim(local_queries, docs_all)
        for key in sim_matrices:
            sim_matrices[key] = sim_matrices[key] * SCALE
        positive_scores = sim_matrices["query_to_doc"][row_indices, local_batch]
        all_scores = torch.cat(list(sim_matrices.values()), dim=1)
        log_z = torch.logsumexp(all_scores, dim=1)
        per_sample_loss = -(positive_scores - log_z)
        loss_mbatch = per_sample_loss.mean() * len(local_batch) / batch_size
        loss_mbatch.backward()
        loss_mbatch = loss_mbatch.detach()
        losses.append(loss_mbatch)
    del local_docs
    return sum(losses)


def _train(model: Any, setup: TrainingSetup, tracer: Any) -> None:
    import torch

    from kb.torch_runs.simulation.training import GRADIENT_NORM, optimizer_of

    assert setup.post is not None
    post = setup.post
    model.train()
    optimizer = optimizer_of(model, setup)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    shape = (setup.per_device_train_batch_size, setup.max_source_length)

    def compute_loss(inputs: list[dict[str, Any]]) -> Any:
        features = [dict(each) for each in inputs]
        if post.cached:
            return _cached_loss(model, features, post.cached)
        return _ranking_loss(_embed_columns(model, features))

    for _ in range(2):
        for _ in range(setup.gradient_accumulation_steps):
            tracer.phase = "train:inputs"
            batch = [{name: torch.ones(shape, dtype=torch.long, device="cuda")
                      for name in ("input_ids", "attention_mask")} for _ in range(post.columns)]  # fmt: skip
            tracer.phase = "train:forward"
            loss = compute_loss(batch)
            if setup.gradient_accumulation_steps > 1:
                loss = loss / setup.gradient_accumulation_steps
            tracer.phase = "train:backward"
            loss.backward()
            del loss, batch
        tracer.phase = "train:optimizer"
        torch.nn.utils.clip_grad_norm_(parameters, GRADIENT_NORM)
        optimizer.step()
        for parameter in parameters:
            parameter.grad = None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("config", help="a config.json's content")
    parser.add_argument("settings", nargs="*", help="name=value, of TrainingSetup; post.NAME=value of PostTraining")
    parser.add_argument("--capability", default="8.6")
    parser.add_argument("--context", type=int, default=16, help="acts to show around the first that differs")
    options = parser.parse_intermixed_args()
    given = {name: yaml.safe_load(value) for name, _, value in (each.partition("=") for each in options.settings)}
    post = {name.removeprefix("post."): given.pop(name) for name in list(given) if name.startswith("post.")}
    setup = setup_from(given)._replace(post=PostTraining("embedding", **post))
    config = json.loads(options.config)
    major, minor = map(int, options.capability.split("."))
    acts, wanted = simulated(config, setup, (major, minor))
    own, found = followed(config, setup, (major, minor))
    for name, pair in wanted.items():
        mine = found.get(name, (0, 0))
        print(f"{'=' if mine == pair else '!'} {name:6} allocated {pair[0]:>14,} {mine[0]:>14,}", end="   ")
        print(f"reserved {pair[1]:>14,} {mine[1]:>14,}")
    compare_acts(acts, own, options.context)
    return 0 if all(found.get(name) == pair for name, pair in wanted.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
