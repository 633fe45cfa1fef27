"""Models in the style of Llama, as transformers saves them: sherd checkpoint import knows their parameters by their config.json, and
what sherd checkpoint export writes is the same model. usage: test_llama.py SHERD. Without the packages it is skipped."""
import os
import shutil
import subprocess
import sys
import tempfile

try:
    import safetensors.torch
    import torch
    import transformers
except ImportError as missing:
    print(f"skipped: {missing} (SHERD_PYTHON names an interpreter that has torch, transformers and safetensors)")
    sys.exit(77)

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
torch.manual_seed(1)
torch.set_num_threads(1)

SIZES = {"vocab_size": 300, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 96, "max_position_embeddings": 128, "initializer_range": 0.15, "bos_token_id": None,
         "eos_token_id": None}
MODELS = {
    "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig, {"tie_word_embeddings": False}),
    "llama tied": (transformers.LlamaForCausalLM, transformers.LlamaConfig, {"tie_word_embeddings": True}),
    "llama with biases": (transformers.LlamaForCausalLM, transformers.LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
    "llama, wide heads": (transformers.LlamaForCausalLM, transformers.LlamaConfig, {"head_dim": 32}),
    "mistral": (transformers.MistralForCausalLM, transformers.MistralConfig, {}),
    "qwen2": (transformers.Qwen2ForCausalLM, transformers.Qwen2Config, {"tie_word_embeddings": True}),
    "qwen3": (transformers.Qwen3ForCausalLM, transformers.Qwen3Config, {"head_dim": 16, "tie_word_embeddings": False}),
}


def make(name):
    kind, config, more = MODELS[name]
    model = kind(config(**SIZES, **more)).eval()
    with torch.no_grad():
        for tensor in model.parameters():
            if tensor.dim() == 1:  # norms and biases are all alike when they are made
                tensor.add_(0.3 * torch.randn_like(tensor))
    return model


def sherd(*args, expect=0):
    done = subprocess.run([sys.argv[1], "checkpoint", *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=60)
    assert done.returncode == expect, f"{args} ends with {done.returncode}: {done.stdout}"
    return done.stdout


def stored(model):
    """What its files have: a head that is tied is there once."""
    is_tied = model.config.tie_word_embeddings
    return {name: tensor for name, tensor in model.state_dict().items() if not (is_tied and name == "lm_head.weight")}


def logits(model):
    with torch.no_grad():
        return model(torch.arange(200).reshape(2, 100)).logits


def models_go_in_and_out(path):
    for name, (kind, _, _) in MODELS.items():
        model, key = make(name), name.replace(" ", "-").replace(",", "")
        model.save_pretrained(path(key), max_shard_size="50KB")
        assert os.path.exists(os.path.join(path(key), "model.safetensors.index.json")), name
        sherd("import", path(key), path(f"runs/{key}"), "--model", path(key))
        sherd("verify", path(f"runs/{key}"))
        sherd("export", path(f"runs/{key}"), path(f"{key}-out"))
        got = safetensors.torch.load_file(os.path.join(path(f"{key}-out"), "model.safetensors"))
        assert set(got) == set(stored(model)), (name, set(got) ^ set(stored(model)))
        for tensor, want in stored(model).items():
            assert torch.equal(got[tensor], want), (name, tensor)
        shutil.copy(os.path.join(path(key), "config.json"), path(f"{key}-out"))
        again, about = kind.from_pretrained(path(f"{key}-out"), output_loading_info=True, local_files_only=True)
        assert not {what: names for what, names in about.items() if names}, (name, about)
        assert torch.equal(logits(again.eval()), logits(model)), name
        print(f"{name}: {len(got)} tensors, the same logits")


def narrow_weights_are_widened(path):
    model = make("llama")
    want = {name: tensor.to(torch.bfloat16) for name, tensor in stored(model).items()}
    model.to(torch.bfloat16).save_pretrained(path("narrow"))
    sherd("import", path("narrow"), path("runs/narrow"), "--model", path("narrow"))
    sherd("export", path("runs/narrow"), path("narrow.safetensors"))
    got = safetensors.torch.load_file(path("narrow.safetensors"))
    for name, tensor in want.items():
        assert got[name].dtype == torch.float32 and torch.equal(got[name], tensor.to(torch.float32)), name


def another_model_is_refused(path):
    make("llama").save_pretrained(path("one"))
    make("llama with biases").save_pretrained(path("other"))
    said = sherd("import", path("one"), path("runs/mixed"), "--model", path("other"), expect=1)
    assert "the file has no tensor model.layers.0.self_attn.q_proj.bias" in said, said
    said = sherd("import", path("other"), path("runs/mixed"), "--model", path("one"), expect=1)
    assert "bias, which this model has not" in said, said
    assert not os.path.exists(path("runs/mixed"))


CASES = (models_go_in_and_out, narrow_weights_are_widened, another_model_is_refused)

if __name__ == "__main__":
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, safetensors {safetensors.__version__}")
    with tempfile.TemporaryDirectory() as scratch:
        for case in CASES:
            case(lambda name: os.path.join(scratch, name))
            print(f"ok   {case.__name__}", flush=True)
