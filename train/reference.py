"""Makes the reference tensors that the engine's tests compare with.

    python train/reference.py OUT

needs torch and transformers 5. For the bundled model (assets/tiny-moe) and for a tiny random
checkpoint of each supported architecture it writes OUT/NAME/reference.safetensors: input ids,
router logits of every layer, the chosen experts with their weights and the margin to the next one,
logits of all positions, and a greedy continuation with the margin of every step. The random
checkpoints are written beside their references; together they cover the three stored types, sharded
files, grouped queries, biases, shared experts and tied heads.

Arithmetic is f32 on the stored weights, one thread. The attention mask is given: where the padding
id is also the first token of a text, transformers would otherwise leave that token out.
"""

import pathlib
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    OlmoeConfig,
    OlmoeForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

COMMON = dict(
    vocab_size=96,
    hidden_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=128,
    num_experts_per_tok=3,
    rms_norm_eps=1e-6,
    eos_token_id=0,
    pad_token_id=None,
    bos_token_id=0,
    # Random weights of the usual size would leave router and attention almost flat.
    initializer_range=0.15,
)

RANDOM = {
    "qwen3-moe": (
        Qwen3MoeForCausalLM,
        Qwen3MoeConfig(
            **COMMON,
            num_key_value_heads=2,
            head_dim=16,
            num_experts=8,
            moe_intermediate_size=24,
            norm_topk_prob=True,
            tie_word_embeddings=True,
        ),
        torch.bfloat16,
        "20KB",
    ),
    "qwen2-moe": (
        Qwen2MoeForCausalLM,
        Qwen2MoeConfig(
            **COMMON,
            num_key_value_heads=4,
            num_experts=6,
            moe_intermediate_size=24,
            shared_expert_intermediate_size=40,
            norm_topk_prob=False,
        ),
        torch.float32,
        "5GB",
    ),
    "olmoe": (
        OlmoeForCausalLM,
        OlmoeConfig(**COMMON, num_key_value_heads=4, num_experts=8, intermediate_size=20),
        torch.float16,
        "5GB",
    ),
    "mixtral": (
        MixtralForCausalLM,
        MixtralConfig(
            **COMMON, num_key_value_heads=2, num_local_experts=5, intermediate_size=28
        ),
        torch.bfloat16,
        "5GB",
    ),
}


def reference(model, ids, steps):
    """Tensors of one batch of prompts, [prompt][position]."""
    mask = torch.ones_like(ids)
    with torch.no_grad():
        out = model(ids, attention_mask=mask, output_router_logits=True, use_cache=False)
        generated = model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=steps,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            output_scores=True,
            return_dict_in_generate=True,
        )
    prompts, length = ids.shape
    router = torch.stack(out.router_logits).view(len(out.router_logits), prompts, length, -1)
    top_k = model.config.num_experts_per_tok
    probabilities = router.softmax(-1)
    weights, chosen = probabilities.topk(top_k, -1)
    if getattr(model.config, "norm_topk_prob", model.config.model_type == "mixtral"):
        weights = weights / weights.sum(-1, keepdim=True)
    ranked = probabilities.topk(top_k + 1, -1)[0]
    scores = torch.stack(generated.scores, 1).topk(2, -1)[0]
    return {
        "input_ids": ids.int(),
        "router_logits": router.contiguous(),
        "topk_ids": chosen.int().contiguous(),
        "topk_weights": weights.contiguous(),
        "topk_margin": (ranked[..., -2] - ranked[..., -1]).contiguous(),
        "logits": out.logits.contiguous(),
        "greedy_ids": generated.sequences[:, length:].int().contiguous(),
        "greedy_margin": (scores[..., 0] - scores[..., 1]).contiguous(),
    }


def main(out):
    torch.set_num_threads(1)
    root = pathlib.Path(__file__).resolve().parent.parent
    for name, (kind, config, dtype, shard) in RANDOM.items():
        torch.manual_seed(7)
        folder = out / name
        model = kind(config)
        # Fresh norms are 1 and fresh biases 0: a loader that forgets them would not be noticed.
        for label, parameter in model.named_parameters():
            if "norm" in label or label.endswith("bias"):
                parameter.data += 0.3 * torch.randn_like(parameter)
        model.to(dtype).save_pretrained(folder, max_shard_size=shard)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        ids = torch.randint(1, 96, (3, 24))
        save_file(reference(model, ids, 16), folder / "reference.safetensors")
    bundled = AutoModelForCausalLM.from_pretrained(root / "assets/tiny-moe", dtype=torch.float32)
    (out / "tiny-moe").mkdir(parents=True, exist_ok=True)
    ids = load_file(sys.argv[2])["input_ids"].long() if len(sys.argv) > 2 else torch.randint(
        3, 2048, (6, 32), generator=torch.Generator().manual_seed(7)
    )
    tensors = reference(bundled.eval(), ids, 48)
    # All positions of a large vocabulary are 1.5 MB: the last one is enough.
    tensors["logits"] = tensors["logits"][:, -1:].contiguous()
    save_file(tensors, out / "tiny-moe" / "reference.safetensors")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
