"""What the trainer exports is loaded by transformers and gives the trainer's own loss; what transformers saves is where the
trainer starts. usage: test_transformers.py TRAINER. Without the packages it is skipped."""
import os
import struct
import sys
import tempfile

try:
    import numpy
    import safetensors.torch
    import torch
    import transformers
except ImportError as missing:
    print(f"skipped: {missing} (SHERD_PYTHON names an interpreter that has torch, transformers, safetensors and numpy)")
    sys.exit(77)

from trainer import LENGTH, Trainer

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
torch.manual_seed(1)
torch.set_num_threads(1)

MOST = 1e-5  # between two losses in fp32
CLASSES = {"gpt2": transformers.GPT2LMHeadModel, "minimind": transformers.Qwen3ForCausalLM}


def check(what, got, want, most=MOST):
    print(f"{what}: {got:.9g} and {want:.9g}, apart {abs(got - want):.2g}")
    assert abs(got - want) <= most, what


def load(arch, folder):
    model, about = CLASSES[arch].from_pretrained(folder, output_loading_info=True, local_files_only=True)
    left = {key: value for key, value in about.items() if value}
    assert not left, left
    return model


def gpt2(**more):
    """Random weights, large enough that whatever is computed otherwise shows in the loss."""
    config = transformers.GPT2Config(vocab_size=256, n_positions=256, n_embd=64, n_layer=2, n_head=4, resid_pdrop=0.0,
                                     embd_pdrop=0.0, attn_pdrop=0.0, initializer_range=0.15, bos_token_id=None,
                                     eos_token_id=None, **more)
    return transformers.GPT2LMHeadModel(config)


def qwen3():
    config = transformers.Qwen3Config(
        vocab_size=256, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        intermediate_size=192, max_position_embeddings=32768, rms_norm_eps=1e-6, tie_word_embeddings=True,
        initializer_range=0.15, bos_token_id=None, eos_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    model = transformers.Qwen3ForCausalLM(config)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if "norm" in name:
                tensor.copy_(1 + 0.3 * torch.randn_like(tensor))
    return model


def exports_give_the_trainers_loss(t):
    for arch in CLASSES:
        folder = t.path(f"export-{arch}")
        last = t.run(arch, "--export", folder, steps=20)
        model = load(arch, folder)
        assert model.dtype == torch.float32
        check(f"{arch} after 20 steps, trainer and transformers", last["validation_loss"], t.loss_of(model))
        names = safetensors.torch.load_file(os.path.join(folder, "model.safetensors")).keys()
        assert set(names) == {n for n in model.state_dict() if n != "lm_head.weight"}, "names"


def exports_of_several_files_are_one_model(t):
    for arch in CLASSES:
        folder = t.path(f"shards-{arch}")
        last = t.run(arch, "--export", folder, "--export-file-bytes", "100000", steps=2)
        assert os.path.exists(os.path.join(folder, "model.safetensors.index.json"))
        check(f"{arch} in {len(os.listdir(folder)) - 2} files", last["validation_loss"], t.loss_of(load(arch, folder)))
        check(f"{arch} from several files", t.first_loss(arch, folder, stage=1), last["validation_loss"])


def narrow_exports_are_rounded_once(t):
    whole, narrow = t.path("whole"), t.path("narrow")
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        t.run("gpt2", "--export", whole, steps=3)
        t.run("gpt2", "--export", narrow, "--export-as", name, steps=3)
        got = safetensors.torch.load_file(os.path.join(narrow, "model.safetensors"))
        for key, want in safetensors.torch.load_file(os.path.join(whole, "model.safetensors")).items():
            assert got[key].dtype == dtype and torch.equal(got[key], want.to(dtype)), key
        assert transformers.AutoConfig.from_pretrained(narrow).dtype == dtype


def models_of_transformers_start_here(t):
    for arch, model in (("gpt2", gpt2()), ("minimind", qwen3())):
        folder, want = t.path(f"random-{arch}"), t.loss_of(model)
        model.save_pretrained(folder)
        for stage in (3, 0):
            check(f"random {arch} at stage {stage}, trainer and transformers", t.first_loss(arch, folder, stage=stage), want)
        model.save_pretrained(folder + "-shards", max_shard_size="50KB")
        check(f"random {arch} in files", t.first_loss(arch, folder + "-shards"), want)
        file = t.path(f"{arch}.safetensors")
        os.rename(os.path.join(folder, "model.safetensors"), file)
        check(f"random {arch} from one file", t.first_loss(arch, file, ranks=3), want)


def base_models_and_their_buffers_are_read(t):
    model = gpt2()
    tensors = {name.removeprefix("transformer."): value.clone() for name, value in model.state_dict().items()}
    for layer in range(2):  # as OpenAI's files have them
        tensors[f"h.{layer}.attn.bias"] = torch.tril(torch.ones(256, 256)).view(1, 1, 256, 256)
    file = t.path("base.safetensors")
    safetensors.torch.save_file(tensors, file)
    check("names without a prefix", t.first_loss("gpt2", file), t.loss_of(model))


def what_is_computed_otherwise_is_refused(t):
    for what, config in (("layer_norm_epsilon", {"layer_norm_epsilon": 1e-4}), ("activation_function", {"activation_function": "relu"})):
        gpt2(**config).save_pretrained(t.path(what))
        assert what in t.run("gpt2", "--init", t.path(what), expect=1), what
    gpt2().save_pretrained(t.path("heads"))
    assert "n_head" in t.run("gpt2", "--heads", "2", "--init", t.path("heads"), expect=1)
    gpt2().save_pretrained(t.path("hidden"))
    os.remove(os.path.join(t.path("hidden"), "config.json"))
    assert "[256, 64] in the file, and [256, 32] in this model" in t.run(
        "gpt2", "--hidden", "32", "--init", t.path("hidden"), expect=1)


def llmc_bytes(model, padded, version):
    """A model file of llm.c, as its train_gpt2.py writes one."""
    state = {name: value.detach() for name, value in model.state_dict().items()}
    wte = torch.zeros(padded, 64)
    wte[:256] = state["transformer.wte.weight"]
    tensors = [wte, state["transformer.wpe.weight"]]
    for name in ("ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight",
                 "attn.c_proj.bias", "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight",
                 "mlp.c_proj.bias"):
        for layer in range(2):
            tensor = state[f"transformer.h.{layer}.{name}"]
            tensors.append(tensor.t() if tensor.dim() == 2 else tensor)
    tensors += [state["transformer.ln_f.weight"], state["transformer.ln_f.bias"]]
    header = numpy.zeros(256, dtype=numpy.int32)
    header[:8] = (20240326, version, 256, 256, 2, 4, 64, padded)
    cast = torch.float32 if version == 3 else torch.bfloat16
    view = torch.float32 if version == 3 else torch.int16
    return header.tobytes() + b"".join(x.contiguous().to(cast).view(view).numpy().tobytes() for x in tensors)


def files_of_llmc_go_both_ways(t):
    model, folder = gpt2(), t.path("for-llmc")
    model.save_pretrained(folder)
    for padded, version, name in ((256, 3, "fp32"), (384, 3, "fp32"), (256, 5, "bf16")):
        file = t.path("model.bin")
        with open(file, "wb") as out:
            out.write(llmc_bytes(model, padded, version))
        check(f"llm.c, {padded} rows, {name}", t.first_loss("gpt2", file), t.loss_of(model), MOST if version == 3 else 0.05)
        again = t.path("again.bin")
        t.run("gpt2", "--init", folder, "--lr", "0", "--export", again, "--export-as", name)
        with open(again, "rb") as got:
            assert got.read() == llmc_bytes(model, 256, version), name
    with open(file, "r+b") as cut:
        cut.truncate(os.path.getsize(file) - 2)
    assert "is it whole" in t.run("gpt2", "--init", file, expect=1)
    with open(file, "r+b") as other:
        other.write(struct.pack("<i", 7))
    assert "no model of llm.c" in t.run("gpt2", "--init", file, expect=1)


SIZES = {"vocab_size": 256, "num_hidden_layers": 2, "intermediate_size": 96, "max_position_embeddings": 256,
         "initializer_range": 0.15, "bos_token_id": None, "eos_token_id": None}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}
FAMILIES = {
    "llama": (transformers.LlamaConfig, {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
                                         "attention_bias": True, "mlp_bias": True, "rope_parameters": LLAMA3}),
    "mistral": (transformers.MistralConfig, {"hidden_size": 96, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64,
                                             "sliding_window": LENGTH}),
    "qwen2": (transformers.Qwen2Config, {"hidden_size": 160, "num_attention_heads": 2, "num_key_value_heads": 2,
                                         "tie_word_embeddings": True, "use_sliding_window": True, "sliding_window": LENGTH,
                                         "max_window_layers": 1}),
    "qwen3": (transformers.Qwen3Config, {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 128,
                                         "attention_bias": True,
                                         "rope_parameters": {"rope_type": "linear", "rope_theta": 1e6, "factor": 2.0}}),
}


def models_train_by_their_folder(t):
    """The model is what its folder says; what is exported loads as the same class; a resumed run needs the folder again."""
    for name, (config, more) in FAMILIES.items():
        model = transformers.AutoModelForCausalLM.from_config(config(**SIZES, **more))
        with torch.no_grad():
            for tensor in model.parameters():
                if tensor.dim() == 1:
                    tensor.add_(0.3 * torch.randn_like(tensor))
        folder, out, saved = t.path(name), t.path(f"{name}-out"), t.path(f"{name}-saved")
        model.save_pretrained(folder)
        check(f"random {name}, trainer and transformers", t.run(folder, "--lr", "0")["validation_loss"], t.loss_of(model))
        t.run(folder, "--save", saved, steps=2)
        last = t.run(folder, "--save", saved, "--resume", "--export", out, steps=4)
        again, about = type(model).from_pretrained(out, output_loading_info=True, local_files_only=True)
        assert not {key: value for key, value in about.items() if value}, about
        check(f"{name} after 4 steps", last["validation_loss"], t.loss_of(again))
        for key in ("sliding_window", "rope_parameters", "attention_bias", "tie_word_embeddings", "layer_types"):
            assert (getattr(again.config, key, None) or None) == (getattr(model.config, key, None) or None), (name, key)


CASES = (exports_give_the_trainers_loss, exports_of_several_files_are_one_model, narrow_exports_are_rounded_once,
         models_of_transformers_start_here, models_train_by_their_folder, base_models_and_their_buffers_are_read,
         what_is_computed_otherwise_is_refused, files_of_llmc_go_both_ways)

if __name__ == "__main__":
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, safetensors {safetensors.__version__}")
    with tempfile.TemporaryDirectory() as scratch:
        for case in CASES:
            case(Trainer(sys.argv[1], scratch))
            print(f"ok   {case.__name__}", flush=True)
