"""The class Accelerator: Accelerate's calls over engines of sherd."""
from __future__ import annotations

import contextlib
import copy
import inspect
import os
from collections import OrderedDict
from types import MethodType
from typing import Any, Iterable, Iterator, Mapping

import accelerate
import torch
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import convert_outputs_to_fp32, get_mixed_precision_context_manager, load
from torch import nn

import sherd.torch
from sherd.accelerate.configuration import ConfigSource, block_of, check_given, check_precision, given_config, is_unset, plugin_of
from sherd.accelerate.training import Maker, Optimizer, Training
from sherd.errors import InvalidError, NotSupportedError, StateError
from sherd.world import World

FOLDER = "engine"  # of a model's checkpoint in a folder of save_state()
TAG = "state"

_world: World | None = None  # of the process


def world_of(state: Any) -> World:
    """Returns the world of sherd's that has the ranks of Accelerate's state. Collective and blocking at the first call."""
    global _world
    if _world is None:
        is_cpu = state.device.type == "cpu"
        _world = World.from_env(**({"backend": "cpu"} if is_cpu else {"device": state.device.index or 0}))
    if (_world.size, _world.rank) != (state.num_processes, state.process_index):
        raise InvalidError(f"Accelerate has rank {state.process_index} of {state.num_processes}, and sherd's world has rank {_world.rank} of "
                           f"{_world.size}: start the script by a launcher that both read (docs/launching.md), such as torchrun")
    return _world


class Accelerator(accelerate.Accelerator):
    """Accelerate's Accelerator, whose prepared models are trained by engines of sherd.

    sherd_config: a dict with DeepSpeed's keys, or the path of a JSON file. Without it the configuration is that of the
        deepspeed_plugin, else of `accelerate launch`, else stage 2. "auto" is filled from what is prepared.
    sherd_options: options of sherd.torch.Engine for every engine, such as {"backward_uses": "any"}.
    All other arguments are Accelerate's. Raises NotSupportedError for what an engine cannot have, by its name.
    """

    def __init__(self, *args: Any, sherd_config: ConfigSource | None = None, sherd_options: Mapping[str, Any] | None = None,
                 **kwargs: Any) -> None:
        given = inspect.signature(accelerate.Accelerator.__init__).bind(self, *args, **kwargs).arguments
        del given["self"]
        check_given(given)
        plugin = plugin_of(given.pop("deepspeed_plugin", None), given.pop("deepspeed_plugins", None))
        self._config = given_config(sherd_config, plugin)
        self._options = dict(sherd_options or {})
        os.environ["ACCELERATE_USE_DEEPSPEED"] = "false"  # else Accelerate looks for the package, and takes its branches
        enabled = {kind: block_of(self._config, kind).get("enabled", "auto") for kind in ("bf16", "fp16")}
        if enabled["bf16"] is True and given.get("mixed_precision") is None and "ACCELERATE_MIXED_PRECISION" not in os.environ:
            given["mixed_precision"] = "bf16"
        self._trainings: dict[int, Training] = {}  # by the model's id
        self._is_saving = False
        super().__init__(**given)
        check_precision(self.mixed_precision, enabled)

    # ------------------------------------------------------------- prepare --

    def prepare_model(self, model: nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False) -> nn.Module:
        """Notes the model, whose engine is made at its first forward, and returns the model itself. Local."""
        if evaluation_mode:
            return super().prepare_model(model, device_placement, evaluation_mode)
        if not isinstance(model, nn.Module) or hasattr(model, "_orig_mod"):
            raise NotSupportedError("prepare() of a model that torch.compile has wrapped: prepare the model first, then call model.compile()")
        if id(model) not in self._trainings:
            if self.mixed_precision == "bf16":
                forward = get_mixed_precision_context_manager(self.native_amp, self.autocast_handler)(type(model).forward)
                model.forward = MethodType(convert_outputs_to_fp32(forward), model)  # type: ignore[method-assign] # as Accelerate does
            found = self._trainings[id(model)] = Training(model)
            found.handles.append(model.register_forward_pre_hook(Maker(self), with_kwargs=True, prepend=True))
            self._models.append(model)
        return model

    def prepare_optimizer(self, optimizer: torch.optim.Optimizer, device_placement: bool | None = None) -> AcceleratedOptimizer:
        """Returns the optimizer in a wrapper whose step is the engine's. Local. Raises StateError where its model has an engine already."""
        if isinstance(optimizer, Optimizer):
            if not any(optimizer is one for one in self._optimizers):
                self._optimizers.append(optimizer)
            return optimizer
        tensors = {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}
        for found in self._trainings.values():
            if found.engine is not None and any(id(param) in tensors for param in found.model.parameters()):
                raise StateError(f"the {type(found.model).__name__} has made its first forward, or save_state() or load_state(), before its "
                                 f"{type(optimizer).__name__} was prepared, so its engine has no updates: prepare the optimizer before")
        made = Optimizer(self, optimizer)
        self._optimizers.append(made)
        return made

    def _prepare_one(self, obj: Any, first_pass: bool = False, device_placement: Any = None) -> Any:
        if type(obj).__name__ in ("DummyOptim", "DummyScheduler"):
            raise NotSupportedError(f"{type(obj).__name__}: prepare an optimizer of torch, such as torch.optim.AdamW(model.parameters(), lr=...), "
                                    f"and a scheduler of torch")
        return super()._prepare_one(obj, first_pass, device_placement)

    def engine(self, model: nn.Module) -> sherd.torch.Engine:
        """Returns the engine of a prepared model, and makes it where it is not made yet. Collective and blocking then."""
        found = self._trainings.get(id(model))
        if found is None or found.model is not model:
            raise StateError(f"accelerator.engine() is for a model that prepare() was given, and this {type(model).__name__} is none")
        if found.engine is None:
            self._bind()
            config, found.clipping = self._filled(found)
            wrapped = found.optimizer
            found.engine = sherd.torch.initialize(model, config, None if wrapped is None else wrapped.optimizer,
                                                  world=world_of(self.state), **self._options)
            for handle in found.handles:
                handle.remove()
        return found.engine

    def _bind(self) -> None:
        """Finds the model of each optimizer by its parameters. Raises NotSupportedError where that is not one to one."""
        models = {id(param): found for found in self._trainings.values() for param in found.model.parameters()}
        for optimizer in self._optimizers:
            tensors = [tensor for group in optimizer.param_groups for tensor in group["params"]]
            owners = {id(models[id(tensor)]): models[id(tensor)] for tensor in tensors if id(tensor) in models}
            kind = type(optimizer.optimizer).__name__
            if len(owners) > 1:
                raise NotSupportedError(f"the {kind} has parameters of {len(owners)} prepared models: give each model an optimizer of its own")
            for found in owners.values():
                if found.optimizer not in (None, optimizer):
                    raise NotSupportedError(f"the {type(found.model).__name__} has two prepared optimizers: prepare one, whose groups have what "
                                            f"differs")
                found.optimizer = optimizer

    def _training_of(self, optimizer: Optimizer) -> Training:
        """Returns the training of an optimizer. Raises StateError where no prepared model has its parameters."""
        self._bind()
        for found in self._trainings.values():
            if found.optimizer is optimizer:
                return found
        raise StateError(f"no prepared model has the parameters of this {type(optimizer.optimizer).__name__}: give prepare() the model too")

    def _filled(self, found: Training) -> tuple[dict[str, Any], float]:
        """Returns the configuration of a model's engine, and the norm to which it clips (0: none), without what it leaves open."""
        config = copy.deepcopy(self._config)
        if is_unset(config, "train_batch_size"):
            config.pop("train_batch_size", None)
        if is_unset(config, "train_micro_batch_size_per_gpu"):
            size = self._micro_batch_size()
            if size is None and "train_micro_batch_size_per_gpu" in config:
                raise InvalidError('"train_micro_batch_size_per_gpu" is "auto", and no prepared loader has a batch_size: write the number in '
                                   "the configuration")
            config["train_micro_batch_size_per_gpu"] = size or 1
            if "train_batch_size" in config:
                del config["train_micro_batch_size_per_gpu"]
        if is_unset(config, "gradient_accumulation_steps"):
            config["gradient_accumulation_steps"] = self.gradient_accumulation_steps
        elif config["gradient_accumulation_steps"] != self.gradient_accumulation_steps:
            raise InvalidError(f"\"gradient_accumulation_steps\" is {config['gradient_accumulation_steps']} in the configuration and "
                               f"{self.gradient_accumulation_steps} in Accelerator(): write \"auto\", or give both the same number")
        clipping = config.get("gradient_clipping", "auto")
        config["gradient_clipping"] = 0  # it is of the sum, which this module clips
        block = block_of(config, "bf16")
        if block.get("enabled", "auto") == "auto":
            config["bf16"] = {**block, "enabled": self.mixed_precision == "bf16"}
        if block_of(config, "fp16").get("enabled", "auto") == "auto":
            config.pop("fp16", None)
        if found.optimizer is None:
            config["optimizer"] = {"type": "none"}
        if "scheduler" in config and any(value == "auto" for value in block_of(config["scheduler"], "params").values()):
            if not self._schedulers:
                raise InvalidError('"scheduler" has values that are "auto", and no scheduler of torch is prepared: write the numbers in the '
                                   "configuration, or prepare a scheduler")
        if "scheduler" in config and (self._schedulers or found.optimizer is None):
            del config["scheduler"]  # the script's has the rates
        config["sherd"] = {**block_of(config, "sherd"), "open_windows": True}
        return config, 0.0 if clipping == "auto" else float(clipping)

    def _micro_batch_size(self) -> int | None:
        """Returns the smallest batch of a rank among the prepared loaders; None: no loader tells it."""
        found = []
        for loader in self._dataloaders:
            size = getattr(loader, "batch_size", None) or getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
            if size:
                found.append(max(1, size // self.num_processes) if self.split_batches else size)
        return min(found, default=None)

    # ---------------------------------------------------------------- step --

    @contextlib.contextmanager
    def accumulate(self, *models: nn.Module) -> Iterator[None]:
        """Accelerate's context. At its end, the micro-batch of a loss.backward() is over too."""
        with super().accumulate(*models):
            yield
            self._end_micro_batches()

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """Runs the backward of `loss` divided by gradient_accumulation_steps, and ends the micro-batch. Collective, blocking."""
        for name, value in kwargs.items():
            if name != "retain_graph" and value:
                raise NotSupportedError(f"accelerator.backward({name}=): an engine takes the whole gradient, and none of a gradient")
        loss = loss / self.gradient_accumulation_steps
        engines = [found.engine for found in self._trainings.values() if found.engine is not None and found.optimizer is not None]
        if len(engines) == 1:
            engines[0].backward(loss, retain_graph=bool(kwargs.get("retain_graph")))
        else:
            loss.backward(retain_graph=bool(kwargs.get("retain_graph")))  # each engine counts the backward that reaches it
        self._end_micro_batches()

    def _end_micro_batches(self) -> None:
        for found in self._trainings.values():
            found.end_micro_batch()

    def clip_grad_norm_(self, parameters: torch.Tensor | Iterable[torch.Tensor], max_norm: float, norm_type: float = 2) -> torch.Tensor:
        """Clips the step that follows to this norm, and returns the norm before. Collective, blocking.

        `parameters` are all of one prepared model. Raises NotSupportedError (some of them alone, another norm), StateError (inside a
        window).
        """
        if float(norm_type) != 2:
            raise NotSupportedError(f"accelerator.clip_grad_norm_(norm_type={norm_type}): an engine clips by the L2 norm")
        if not self.sync_gradients:
            raise StateError("accelerator.clip_grad_norm_() inside a window would clip a part of its gradient: call it where "
                             "accelerator.sync_gradients is True, as Accelerate's examples do")
        tensors = {id(one) for one in ([parameters] if isinstance(parameters, torch.Tensor) else parameters)}
        self._bind()
        for found in self._trainings.values():
            own = {id(param) for param in found.model.parameters() if param.requires_grad}
            if own and own <= tensors and tensors <= {id(param) for param in found.model.parameters()}:
                return torch.tensor(found.clip_by(float(max_norm)), device=self.device)
        raise NotSupportedError("accelerator.clip_grad_norm_() of these parameters: an engine clips by the norm of all trainable parameters of "
                                "one prepared model, model.parameters()")

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        """Raises NotSupportedError."""
        raise NotSupportedError("accelerator.clip_grad_value_(): an engine clips by the norm: call accelerator.clip_grad_norm_()")

    def unscale_gradients(self, optimizer: Any = None) -> None:
        """Does nothing: gradients are not scaled. Local."""

    # --------------------------------------------------------------- state --

    def get_state_dict(self, model: nn.Module, unwrap: bool = True) -> dict[str, Any]:
        """Returns the weights by name, in fp32 and on the CPU, on every rank. Collective, blocking. It takes their memory on each rank."""
        found = self._trainings.get(id(model))
        if found is None or found.engine is None or found.model is not model:
            return super().get_state_dict(model, unwrap)
        return {} if self._is_saving else dict(found.engine.state_dict())

    def save_state(self, output_dir: str | None = None, safe_serialization: bool = True, **save_model_func_kwargs: Any) -> Any:
        """Saves all that load_state() needs, with a checkpoint of each engine. Collective, blocking, between windows."""
        def save(_models: Any, weights: list[Any], folder: str) -> None:
            for index, found in enumerate(listed):
                self.engine(found.model).save_checkpoint(os.path.join(folder, f"{FOLDER}_{index}"), TAG)
            weights.clear()

        listed = self._made()
        with self._engines_apart("_save_model_state_pre_hook", save):
            return super().save_state(output_dir, safe_serialization, **save_model_func_kwargs)

    def load_state(self, input_dir: str | None = None, load_kwargs: dict[str, Any] | None = None, **load_model_func_kwargs: Any) -> None:
        """Loads what save_state() has saved, on this number of ranks or another. Collective, blocking.

        An engine that has not seen a batch yet loads with its first one.
        """
        folders: list[str] = []

        def load_engines(models: list[Any], folder: str) -> None:
            folders.append(folder)
            for index, found in enumerate(listed):
                own = os.path.join(folder, f"{FOLDER}_{index}")
                if not os.path.isdir(own):
                    raise InvalidError(f"{folder} has no {FOLDER}_{index}, which save_state() of sherd.accelerate writes: load a folder of "
                                       f"Accelerate's own by Accelerate, and give the weights to the model before prepare()")
                found.drop()
                self.engine(found.model).load_checkpoint(own, TAG)
            models.clear()

        listed = self._made()
        with self._engines_apart("_load_model_state_pre_hook", load_engines):
            super().load_state(input_dir, load_kwargs, **load_model_func_kwargs)
        states = os.path.join(folders[0], f"random_states_{self.process_index}.pkl")
        if not os.path.exists(states):  # there were fewer ranks: the counter is the same on all
            self.step = load(os.path.join(folders[0], "random_states_0.pkl"))["step"]

    def _made(self) -> list[Training]:
        """Makes the engines that are not made yet. Returns the trainings in the order in which the models were prepared."""
        for found in self._trainings.values():
            self.engine(found.model)
        return list(self._trainings.values())

    @contextlib.contextmanager
    def _engines_apart(self, name: str, hook: Any) -> Iterator[None]:
        """A context in which Accelerate leaves out the models and optimizers of engines, and calls `hook` as the last of its hooks."""
        kept, optimizers = getattr(self, name), self._optimizers
        setattr(self, name, OrderedDict([*kept.items(), ("sherd", hook)]))
        self._optimizers = [one for one in optimizers if not isinstance(one, Optimizer)]
        self._is_saving = True
        try:
            yield
        finally:
            setattr(self, name, kept)
            self._optimizers, self._is_saving = optimizers, False

    def free_memory(self, *objects: Any) -> Any:
        """Ends the engines, whose models have no values any more, and does what Accelerate's call does. Collective, blocking."""
        for found in self._trainings.values():
            for handle in found.handles:
                handle.remove()
            if found.engine is not None:
                found.engine.destroy()
        self._trainings.clear()
        return super().free_memory(*objects)

    def join_uneven_inputs(self, joinables: Any, even_batches: bool | None = None) -> Any:
        """Raises NotSupportedError on several ranks: all ranks make equally many forwards."""
        if self.num_processes > 1:
            raise NotSupportedError("accelerator.join_uneven_inputs(): all ranks of an engine make equally many forwards, as loaders with "
                                    "even_batches=True give them")
        return super().join_uneven_inputs(joinables, even_batches)

    def lomo_backward(self, loss: torch.Tensor, learning_rate: float) -> None:
        """Raises NotSupportedError."""
        raise NotSupportedError("accelerator.lomo_backward(): the engine has no LOMO")
