"""Makes cases in the form of models.json of small random models that transformers computes: make_cases.py NAME... ; without names it
makes all. The oracle (oracle.c) holds the trainer to them. Products are in float64; transformers' norms and angles stay in fp32."""
import json
import math
import sys

import torch
import transformers

transformers.logging.set_verbosity_error()
torch.set_num_threads(1)

MASK = (1 << 64) - 1
COMMON = {"num_hidden_layers": 2, "vocab_size": 61, "intermediate_size": 72, "max_position_embeddings": 256}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
LINEAR = {"rope_type": "linear", "factor": 4.0}
# Names end with the width of a head.
MODELS = {
    "llama-64": {"model_type": "llama", "hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1, "rms_norm_eps": 1e-5,
                 "rope_parameters": {"rope_theta": 500000.0, **LLAMA3}, "attention_bias": True, "mlp_bias": True,
                 "tie_word_embeddings": False},
    "mistral-64": {"model_type": "mistral", "hidden_size": 48, "head_dim": 64, "num_attention_heads": 2, "num_key_value_heads": 1,
                   "rms_norm_eps": 1e-5, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
                   "sliding_window": 32, "tie_word_embeddings": False},
    "qwen2-80": {"model_type": "qwen2", "hidden_size": 160, "num_attention_heads": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
                 "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}, "tie_word_embeddings": True},
    "qwen3-128": {"model_type": "qwen3", "hidden_size": 48, "head_dim": 128, "num_attention_heads": 2, "num_key_value_heads": 1,
                  "rms_norm_eps": 1e-6, "rope_parameters": {"rope_theta": 1000000.0, **LINEAR}, "tie_word_embeddings": False},
    "llama-80": {"model_type": "llama", "hidden_size": 240, "num_attention_heads": 3, "num_key_value_heads": 1, "rms_norm_eps": 1e-5,
                 "rope_parameters": {"rope_theta": 10000.0, **LINEAR}, "tie_word_embeddings": True},
    "llama-128": {"model_type": "llama", "hidden_size": 96, "head_dim": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
                  "rms_norm_eps": 1e-6, "rope_parameters": {"rope_theta": 500000.0, **LLAMA3}, "tie_word_embeddings": False},
    "mistral-128": {"model_type": "mistral", "hidden_size": 128, "num_attention_heads": 1, "num_key_value_heads": 1,
                    "rms_norm_eps": 1e-5, "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
                    "sliding_window": None, "tie_word_embeddings": False},
    "qwen2-64": {"model_type": "qwen2", "hidden_size": 192, "num_attention_heads": 3, "num_key_value_heads": 1, "rms_norm_eps": 1e-5,
                 "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "tie_word_embeddings": False},
    "qwen3-64": {"model_type": "qwen3", "hidden_size": 64, "head_dim": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
                 "rms_norm_eps": 1e-5, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "attention_bias": True,
                 "tie_word_embeddings": True},
    "qwen3-80": {"model_type": "qwen3", "hidden_size": 72, "head_dim": 80, "num_attention_heads": 3, "num_key_value_heads": 3,
                 "rms_norm_eps": 1e-6, "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
                 "tie_word_embeddings": False},
}
LAYER = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "self_attn.q_norm", "self_attn.k_norm",
         "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm")
ABOUT = {"batch": 2, "length": 11, "scale": 0.15, "lr": 0.001}


def mix(x):
    """splitmix64 of an int64 tensor: products wrap, shifts have to be made logical."""
    def signed(value):
        return value - (1 << 64) if value >> 63 else value

    def right(value, bits):
        return (value >> bits) & ((1 << (64 - bits)) - 1)

    x = x + signed(0x9e3779b97f4a7c15)
    x = (x ^ right(x, 30)) * signed(0xbf58476d1ce4e5b9)
    x = (x ^ right(x, 27)) * signed(0x94d049bb133111eb)
    return x ^ right(x, 31)


def uniform(start, count):
    """From -1 to 1, by the numbers from `start` on."""
    return 2.0 * (((mix(torch.arange(count) + start) >> 11) & ((1 << 53) - 1)).double() * 2.0**-53) - 1.0


def tokens_of(vocab):
    number = mix(torch.arange(ABOUT["batch"] * (ABOUT["length"] + 1)) + 10**15).tolist()
    return torch.tensor([(value & MASK) % vocab for value in number]).reshape(ABOUT["batch"], ABOUT["length"] + 1)


def parameters_of(model):
    """In the order in which the trainer declares them."""
    have = dict(model.named_parameters())
    order = ["model.embed_tokens.weight"]
    for layer in range(model.config.num_hidden_layers):
        order += [f"model.layers.{layer}.{part}.{what}" for part in LAYER for what in ("weight", "bias")]
    order += ["model.norm.weight", "lm_head.weight"]
    return [(name, have[name]) for name in order if name in have]


def start(parameters):
    with torch.no_grad():
        for k, (name, tensor) in enumerate(parameters):
            values = uniform(k << 32, tensor.numel()).reshape(tensor.shape)
            values = 1.0 + 0.1 * values if "norm" in name else ABOUT["scale"] * values
            tensor.copy_(values.float())


def loss_of(model, tokens):
    logits = model(tokens[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1))


def described(k, name, tensor):
    grad = tensor.grad.reshape(-1)
    return {"k": k, "name": name, "shape": list(tensor.shape), "grad_l2": grad.norm().item(), "grad_first": grad[:4].tolist(),
            "grad_last": grad[-2:].tolist(), "grad_dot": grad.dot(uniform((1 << 62) + (k << 32), grad.numel())).item()}


def case_of(config):
    settings = transformers.AutoConfig.for_model(**config)
    model = transformers.AutoModelForCausalLM.from_config(settings, attn_implementation="eager").double().train()
    parameters = parameters_of(model)
    assert len(parameters) == len(list(model.parameters()))
    start(parameters)
    tokens = tokens_of(config["vocab_size"])
    adam = torch.optim.AdamW(model.parameters(), lr=ABOUT["lr"], betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    case = {"case": {**ABOUT, "config": config}}
    losses = []
    for step in range(10):
        adam.zero_grad()
        loss = loss_of(model, tokens)
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            case["loss"] = loss.item()
            case["grad_norm"] = math.sqrt(sum(tensor.grad.pow(2).sum().item() for _, tensor in parameters))
            case["parameters"] = [described(k, *parameter) for k, parameter in enumerate(parameters)]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
    case["adamw_losses"] = losses
    return case


def text_of(name, case):
    """One line for each parameter."""
    lines = ",\n".join("   " + json.dumps(parameter) for parameter in case["parameters"])
    about = json.dumps(case["case"])
    return (f' {json.dumps(name)}: {{\n  "case": {about},\n  "loss": {case["loss"]}, "grad_norm": {case["grad_norm"]},\n'
            f'  "parameters": [\n{lines}\n  ],\n  "adamw_losses": {json.dumps(case["adamw_losses"])}\n }}')


if __name__ == "__main__":
    names = sys.argv[1:] or list(MODELS)
    print("{\n" + ",\n".join(text_of(name, case_of({**COMMON, **MODELS[name]})) for name in names) + "\n}")
