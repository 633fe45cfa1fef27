"""transformers' Trainer over an engine of sherd: a script changes `from transformers import Trainer, TrainingArguments` to this module.

docs/transformers.md is the user's page. Loop, loss, schedules, evaluation, callbacks and logging are the Trainer's own. What is here
gives it sherd's Accelerator, and does by the engine what the Trainer would do by a module and an optimizer: saving and loading.
"""
from __future__ import annotations

import contextlib
import functools
import json
import os
import weakref
from dataclasses import dataclass
from typing import Any, Iterator, Mapping

import torch
import transformers
from torch import nn
from transformers.integrations import unset_hf_deepspeed_config

import sherd.accelerate
import sherd.torch
from sherd.accelerate.configuration import ConfigSource, check_given
from sherd.accelerate.training import OfModule, Training
from sherd.config import parsed
from sherd.errors import InvalidError, NotSupportedError
from sherd.torch.gathered import owner_of
from sherd.torch.weights import read

OVERRIDDEN = (  # the private names of the Trainer that TrainerMixin overrides, in addition to public ones
    "_build_accelerator_args", "_has_mixed_mesh_grads", "_load_best_model", "_load_from_checkpoint", "_load_optimizer_and_scheduler",
    "_move_model_to_device", "_save", "_save_optimizer_and_scheduler", "create_accelerator_and_postprocess",
)
FOLDER = "engine"  # of the engine's checkpoint in a folder checkpoint-N
TAG = "state"
SCHEDULE, OPTIMIZER = "scheduler.pt", "optimizer.pt"  # the Trainer's files


def check_names(kind: type) -> None:
    """Raises NotSupportedError where a class of Trainers lacks one of these names: the override would do nothing."""
    for name in OVERRIDDEN:
        if not hasattr(kind, name):
            raise NotSupportedError(f"transformers {transformers.__version__} has no {kind.__name__}.{name}, which sherd.transformers overrides: "
                                    f"install a release that docs/transformers.md names")


check_names(transformers.Trainer)


# --------------------------------------------------------------- arguments --

class ArgumentsMixin:
    """What arguments of a Trainer take first, so that `deepspeed` is read by sherd, whether or not the package deepspeed is installed.

    It has no annotations of its own: transformers' parser makes options of a class by those of the whole line of its bases.
    """

    def __post_init__(self) -> None:
        given, self.deepspeed = self.deepspeed, None
        self.use_cpu = self.use_cpu or not torch.cuda.is_available()  # else several ranks on CPUs do not find each other
        os.environ["ACCELERATE_USE_DEEPSPEED"] = "false"  # else transformers makes a plugin; the other variables stay, and are read
        super().__post_init__()  # type: ignore[misc]
        self.deepspeed = given


@dataclass
class TrainingArguments(ArgumentsMixin, transformers.TrainingArguments):
    """transformers' TrainingArguments, whose `deepspeed` is the engine's configuration: a path, a dict, or a dict as JSON."""


@dataclass
class Seq2SeqTrainingArguments(ArgumentsMixin, transformers.Seq2SeqTrainingArguments):
    """transformers' Seq2SeqTrainingArguments, whose `deepspeed` is the engine's configuration."""


def source_of(sherd_config: ConfigSource | None, args: Any) -> ConfigSource | None:
    """Returns where the configuration comes from: the argument `sherd`, else args.deepspeed; None: the launcher's variables."""
    source = getattr(args, "deepspeed", None) if sherd_config is None else sherd_config
    return parsed(source, "args.deepspeed") if isinstance(source, str) and source.lstrip().startswith("{") else source


def without_deepspeed(args: Any) -> None:
    """Takes DeepSpeed out of arguments that transformers has made itself, and out of the state of Accelerate. Local."""
    if getattr(args, "deepspeed_plugin", None) is None:
        return
    args.deepspeed_plugin = None
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "false"
    unset_hf_deepspeed_config()  # else from_pretrained divides weights by deepspeed.zero.Init
    args.use_cpu = args.use_cpu or args.device.type == "cpu"  # else several ranks on CPUs do not find each other
    given, args.deepspeed = args.deepspeed, None
    vars(args).pop("_setup_devices", None)
    args.device  # makes the state anew
    args.deepspeed = given


def filled(config: Mapping[str, Any], args: Any, batch_size: int, model: nn.Module, max_steps: int) -> dict[str, Any]:
    """Returns the configuration with the values of the arguments where it has "auto", as transformers gives them to DeepSpeed.

    Raises InvalidError where it has other values than the arguments. What the optimizer has, the engine fills and compares.
    """
    made = json.loads(json.dumps(config))
    hidden = hidden_size(model)
    sizes = {} if hidden is None else {"reduce_bucket_size": hidden * hidden, "stage3_prefetch_bucket_size": int(0.9 * hidden * hidden),
                                       "stage3_param_persistence_threshold": 10 * hidden}
    steps = args.gradient_accumulation_steps
    wanted: dict[str, tuple[Any, str]] = {  # by key: the value, and the argument that it has to equal; "": any
        "train_micro_batch_size_per_gpu": (batch_size, "per_device_train_batch_size"),
        "gradient_accumulation_steps": (steps, "gradient_accumulation_steps"),
        "train_batch_size": (args.world_size * batch_size * steps, "per_device_train_batch_size x gradient_accumulation_steps x ranks"),
        "gradient_clipping": (args.max_grad_norm, "max_grad_norm"),
        "fp16.enabled": (args.fp16, "fp16"),
        "bf16.enabled": (args.bf16, "bf16"),
        "scheduler.params.warmup_min_lr": (0, ""),
        "scheduler.params.warmup_max_lr": (args.learning_rate, "learning_rate"),
        "scheduler.params.total_num_steps": (max_steps, "the number of steps"),
        "scheduler.params.warmup_num_steps": (max(1, args.get_warmup_steps(max_steps)), "warmup_steps"),
        **{f"zero_optimization.{name}": (size, "") for name, size in sizes.items()},
    }
    apart = []
    for path, (value, argument) in wanted.items():
        *blocks, key = path.split(".")
        node = functools.reduce(lambda block, name: block.get(name) or {}, blocks, made)
        if node.get(key) == "auto":
            node[key] = value
        elif argument and node.get(key) is not None and node[key] != value:
            apart.append(f"{path} is {node[key]}, and {argument} is {value}")
    if apart:
        raise InvalidError("the configuration has other values than the arguments of training: " + "; ".join(apart) + ": write \"auto\" in the "
                           "configuration, or make both the same")
    return made


def hidden_size(model: nn.Module) -> int | None:
    """Returns the hidden size in the model's configuration, the largest one of several; None where it has none."""
    config = getattr(model, "config", None)
    for one in (config, getattr(config, "text_config", None)):
        found = getattr(one, "hidden_size", None) or max(getattr(one, "hidden_sizes", None) or [0])
        if found:
            return int(found)
    return None


def tell_type(path: str) -> None:
    """Makes a model's config.json say that the weights in its folder are fp32, where the model's parameters are of the compute type."""
    if not os.path.exists(path):
        return
    with open(path, encoding="utf-8") as file:
        said = json.load(file)
    if "dtype" in said:
        with open(path, "w", encoding="utf-8") as file:
            file.write(json.dumps({**said, "dtype": "float32"}, indent=2, sort_keys=True) + "\n")


def end_others(model: nn.Module) -> None:
    """Ends the engines by which earlier Trainers have trained a model, which keeps its weights, in fp32. Collective, blocking."""
    for engine in {id(one): one for one in map(owner_of, model.parameters()) if one is not None}.values():
        prepared = vars(engine.module).get("state_dict")
        if isinstance(prepared, OfModule):
            prepared.leave()
        if engine.has_window:
            engine.discard()
        kept = [(param.tensor, read(engine.core, param)) for param in engine.division.params if engine.is_sealed]  # whatever PEFT calls them now
        engine.destroy()
        for tensor, value in kept:
            tensor.data = value.to(tensor.device)


# ------------------------------------------------------------- accelerator --

class Accelerator(sherd.accelerate.Accelerator):
    """The Accelerator of a Trainer: it fills the configuration from the Trainer's arguments, and its engines outlive free_memory()."""

    def __init__(self, trainer: Any, dynamo_plugin: Any = None, **given: Any) -> None:
        self._trainer = weakref.ref(trainer)
        self._compiled = {} if dynamo_plugin is None or dynamo_plugin.backend.value == "NO" else dynamo_plugin.to_kwargs()
        super().__init__(**given)

    def prepare_model(self, model: nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False) -> nn.Module:
        """As sherd.accelerate has it, and compiles the model in place where the Trainer asks for torch_compile. Local."""
        is_new = self._found(model) is None
        if is_new and not evaluation_mode:
            end_others(model)
        model = super().prepare_model(model, device_placement, evaluation_mode)
        if not evaluation_mode and not is_new:
            self._models.append(model)  # which free_memory() has taken out
        if self._compiled and model._compiled_call_impl is None:
            model.compile(**self._compiled)
        return model

    def free_memory(self, *objects: Any) -> Any:
        """Does what Accelerate's call does. The engine of the Trainer's model stays, as a model of torch keeps its weights; others end.

        Collective, blocking.
        """
        model, kept = getattr(self._trainer(), "model", None), {}
        for key, found in list(self._trainings.items()):
            if found.is_of(model):
                found.drop()
                kept[key] = self._trainings.pop(key)
        freed = super().free_memory(*objects)
        self._trainings.update(kept)
        return freed

    def training(self, model: nn.Module) -> Training | None:
        """Returns what is known of a prepared model; None: prepare() was not given it for training. Local."""
        return self._found(model)

    def _accumulation(self) -> int:
        return int(self._trainer().args.gradient_accumulation_steps)  # Accelerate gets 1: the Trainer divides the losses itself

    def _config_of(self, found: Training) -> Mapping[str, Any]:
        trainer, config = self._trainer(), super()._config_of(found)
        if "scheduler" in config and not isinstance(trainer.lr_scheduler, Schedule):
            raise InvalidError('"scheduler" stands in the configuration, and the Trainer was given a scheduler too: leave one of them out')
        args = trainer.args
        return filled(config, args, trainer._train_batch_size // max(1, args.n_gpu), found.module, trainer.state.max_steps)


class Schedule:
    """Stands where the Trainer steps a scheduler, for the one of the configuration, which the engine steps itself."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = weakref.ref(trainer)

    def step(self, *_: Any) -> None:
        """Does nothing."""

    def get_last_lr(self) -> list[float]:
        """Returns the rates of the last update, a number for each group. Local."""
        trainer = self._trainer()
        return list(trainer.accelerator.engine(trainer.model).get_lr())

    def state_dict(self) -> dict[str, Any]:
        """Returns nothing: the state is in the engine's checkpoint."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Does nothing."""


# ----------------------------------------------------------------- trainer --

class TrainerMixin:
    """What a Trainer takes first, before transformers' class or one that is made of it, to train by an engine of sherd.

    sherd: the engine's configuration, a dict with DeepSpeed's keys or the path of a JSON file. Without it the configuration is that of
        args.deepspeed, else that of `accelerate launch`, else stage 2. "auto" is filled from the arguments.
    sherd_options: options of sherd.torch.Engine, such as {"backward_uses": "any"}.
    All other arguments are the Trainer's.
    """

    accelerator: Accelerator
    args: Any
    model: nn.Module
    lr_scheduler: Any

    def __init__(self, *args: Any, sherd: ConfigSource | None = None, sherd_options: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        self._sherd = sherd
        self._sherd_options = sherd_options
        for given in [*args, *kwargs.values()]:
            if isinstance(given, transformers.TrainingArguments):
                without_deepspeed(given)  # before any code of the Trainer asks
            elif isinstance(given, nn.Module) and any(hasattr(param, "ds_id") for param in given.parameters()):
                raise InvalidError(f"the {type(given).__name__} was made under deepspeed.zero.Init, as from_pretrained does after transformers' own "
                                   f"TrainingArguments(deepspeed=) of stage 3: import TrainingArguments from sherd.transformers")
        super().__init__(*args, **kwargs)

    # --------------------------------------------------------- accelerator --

    def _build_accelerator_args(self, **kwargs: Any) -> dict[str, Any]:
        """Returns the arguments of Accelerate's Accelerator, and keeps them for sherd's. NotSupportedError: an engine cannot have them."""
        given = super()._build_accelerator_args(**kwargs)  # type: ignore[misc]
        self._given = {name: value for name, value in given.items() if name != "deepspeed_plugin"}
        plain = {name: value for name, value in self._given.items() if name != "dynamo_plugin"}
        check_given(plain)
        return plain

    def create_accelerator_and_postprocess(self) -> None:
        """Makes the Accelerator: Accelerate's own first, with which the Trainer sets itself up, and sherd's in its place."""
        os.environ["ACCELERATE_USE_DEEPSPEED"] = "false"  # else Accelerate makes a plugin, whose branches the Trainer takes
        super().create_accelerator_and_postprocess()  # type: ignore[misc]
        self.accelerator = Accelerator(self, sherd_config=source_of(self._sherd, self.args), sherd_options=self._sherd_options, **self._given)
        self.gather_function = functools.partial(self.accelerator.gather_for_metrics, **getattr(self.gather_function, "keywords", {}))

    def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None:
        """Leaves the model where it is: the engine takes it from there, and an evaluation without one moves it."""

    def _has_mixed_mesh_grads(self, model: nn.Module) -> bool:
        return False  # the Trainer would read gradients, which the engine has

    def _prepared(self) -> Training | None:
        """Returns what is known of the model that train() has prepared; None: there was no train()."""
        return self.accelerator.training(self.model)

    def _engine(self) -> sherd.torch.Engine | None:
        """Returns the model's engine, if it is made; None: the model has its own weights."""
        found = self._prepared()
        return None if found is None else found.engine

    # ------------------------------------------------------------ schedule --

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Makes the scheduler of the arguments, or that of the configuration, where one stands there, as with DeepSpeed."""
        if self.lr_scheduler is None and "scheduler" in self.accelerator._config:
            self.lr_scheduler, self._created_lr_scheduler = Schedule(self), True
        return super().create_scheduler(num_training_steps, optimizer)  # type: ignore[misc]

    # ---------------------------------------------------------- evaluation --

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """The Trainer's loop, as one evaluation of the engine: ranks may generate texts of different lengths. Collective, blocking."""
        found = self._prepared()
        with contextlib.nullcontext() if found is None else self.accelerator.engine(self.model).evaluating():
            return super().evaluation_loop(*args, **kwargs)  # type: ignore[misc]

    # -------------------------------------------------------------- saving --

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Saves weights, configuration and tokenizer where the Trainer does. Collective, blocking.

        The weights are the master weights, in fp32. The ranks that write have the memory of all of them on the CPU for a while.
        """
        prepared = vars(self.model).get("state_dict")
        found = prepared.training() if isinstance(prepared, OfModule) else None  # that of an earlier Trainer of the model, too
        if state_dict is not None or found is None or found.engine is None:
            super()._save(output_dir, state_dict)  # type: ignore[misc]
            return
        weights = found.read(self.args.should_save)
        named = [param for module in self.model.modules() if hasattr(module, "adapter_state_dict") for param in module.parameters()]
        with sherd.torch.gathered_parameters(named):  # PEFT asks these modules for the names of what they save
            super()._save(output_dir, weights)  # type: ignore[misc]
        if not self.args.should_save:
            for adapter in getattr(self.model, "prompt_encoder", ()):
                self.model.get_prompt_embedding_to_save(adapter)  # which PEFT computes by a forward on the ranks that write, and all ranks make it
        if self.args.should_save:
            tell_type(os.path.join(self.args.output_dir if output_dir is None else output_dir, "config.json"))

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Saves a checkpoint of the engine, and the schedule. Collective, blocking."""
        if self._prepared() is None:
            super()._save_optimizer_and_scheduler(output_dir)  # type: ignore[misc]
            return
        self.accelerator.engine(self.model).save_checkpoint(os.path.join(output_dir, FOLDER), TAG)
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), os.path.join(output_dir, SCHEDULE))

    # ------------------------------------------------------------- loading --

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Loads the engine's checkpoint, with the weights in it, and the schedule. Collective, blocking."""
        if checkpoint is None:
            return
        if not os.path.isdir(os.path.join(checkpoint, FOLDER)):
            if os.path.exists(os.path.join(checkpoint, OPTIMIZER)):
                raise InvalidError(f"{checkpoint} has an {OPTIMIZER}, which transformers' own Trainer has written, and no folder {FOLDER}: go on "
                                   f"with that Trainer, or load the model from there by from_pretrained and begin anew")
            return  # it was saved with save_only_model, from which the Trainer goes on with new states of the optimizer
        self.accelerator.engine(self.model).load_checkpoint(os.path.join(checkpoint, FOLDER), TAG)
        self.lr_scheduler.load_state_dict(torch.load(os.path.join(checkpoint, SCHEDULE), weights_only=True))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Loads the weights before train() prepares the model. Where an engine has it already, its checkpoint brings them later."""
        if self._engine() is None or not os.path.isdir(os.path.join(resume_from_checkpoint, FOLDER)):
            with self._shown():
                super()._load_from_checkpoint(resume_from_checkpoint, model)  # type: ignore[misc]

    def _load_best_model(self) -> None:
        """Loads the weights of the best checkpoint into the engine. Collective, blocking."""
        folder = os.path.join(self.state.best_model_checkpoint, FOLDER)  # type: ignore[attr-defined]
        if self._prepared() is not None and os.path.isdir(folder):
            self.accelerator.engine(self.model).load_checkpoint(folder, TAG, load_module_only=True)
            return
        with self._shown():
            super()._load_best_model()  # type: ignore[misc]

    @contextlib.contextmanager
    def _shown(self) -> Iterator[None]:
        """A context in which the Trainer may write the model's weights itself. Collective, blocking."""
        engine = self._engine()
        with contextlib.nullcontext() if engine is None else sherd.torch.gathered_parameters(engine, modify=True):
            yield


class Trainer(TrainerMixin, transformers.Trainer):
    """transformers' Trainer, which trains by an engine of sherd. TrainerMixin has the arguments."""


class Seq2SeqTrainer(TrainerMixin, transformers.Seq2SeqTrainer):
    """transformers' Seq2SeqTrainer, which trains by an engine of sherd."""


def __getattr__(name: str) -> Any:
    """Returns transformers' object of that name, so that `from sherd.transformers import AutoTokenizer, Trainer` is one import too."""
    return getattr(transformers, name)
