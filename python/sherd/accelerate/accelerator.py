"""The class Accelerator: Accelerate's calls over engines of sherd."""
from __future__ import annotations

import contextlib
import datetime
import inspect
import math
import os
import threading
from collections import OrderedDict
from types import MethodType
from typing import Any, Iterable, Iterator, Mapping

import accelerate
import torch
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import convert_outputs_to_fp32, get_mixed_precision_context_manager, load
from torch import nn

import sherd.torch
from sherd.accelerate.configuration import (ConfigSource, Facts, check_device, check_given, check_precision, filled, given_config, plugin_of,
                                            precision_of, scaling)
from sherd.accelerate.training import (Configured, LoadStateDict, Optimizer, Scaler, Scheduler, Training, coefficient, reached)
from sherd.errors import InvalidError, NotSupportedError, StateError
from sherd.torch import resident
from sherd.torch.say import warn
from sherd.world import World

FOLDER = "engine"  # of a model's checkpoint in a folder of save_state()
TAG = "state"
PATIENCE = 60  # seconds for which ranks wait for each other before one of them says so
LONGEST = 30 * 60  # and before they fail

_world: World | None = None  # of the process
_meeting: Any = None  # a group of torch.distributed with all of its ranks, on the CPU; None: there is one rank


def world_of(state: Any) -> World:
    """Returns the world of sherd's that has the ranks of Accelerate's state. Collective and blocking at the first call."""
    global _world, _meeting
    if _world is None:
        is_cpu = state.device.type == "cpu"
        _world = World.from_env(**({"backend": "cpu"} if is_cpu else {"device": state.device.index or 0}))
        if state.num_processes > 1:
            _meeting = torch.distributed.new_group(backend="gloo")
    if (_world.size, _world.rank) != (state.num_processes, state.process_index):
        raise InvalidError(f"Accelerate has rank {state.process_index} of {state.num_processes}, and sherd's world has rank {_world.rank} of "
                           f"{_world.size}: start the script by a launcher that both read (docs/launching.md), such as torchrun. Without a "
                           f"GPU, Accelerate finds other ranks only with cpu=True, or the variable ACCELERATE_USE_CPU=true")
    return _world


def meet(call: str, longest: float | None = None) -> None:
    """Waits for all ranks, `longest` seconds at most; None: LONGEST, with a warning when PATIENCE is over. Collective, blocking.

    A script may call on one rank what is all ranks' call. Others may also be late, since one evaluates alone. Raises StateError where they
    do not come in time.
    """
    if _meeting is None:
        return
    longest = LONGEST if longest is None else longest
    why = f"{call} needs what all ranks have, so all ranks call it, and none of them under `if accelerator.is_main_process`"
    timer = threading.Timer(PATIENCE, warn, (f"{why}: it has waited {PATIENCE} seconds for other ranks",))
    timer.daemon = True
    timer.start()
    try:
        torch.distributed.monitored_barrier(_meeting, datetime.timedelta(seconds=longest))
    except RuntimeError as error:
        raise StateError(f"{why}; not all did within {longest} seconds ({error}). To save on one rank, call "
                         f"accelerator.get_state_dict(model) on all ranks, and save there what it returns") from error
    finally:
        timer.cancel()


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
        if given.get("mixed_precision") is None and os.environ.get("ACCELERATE_MIXED_PRECISION", "no").lower() == "no":
            given["mixed_precision"] = precision_of(self._config)  # `accelerate launch` sets "no" where nobody has said anything
        self._trainings: dict[int, Training] = {}  # by the module's id
        self._configured: list[Scheduler] = []
        super().__init__(**given)
        check_device(self.device.type)
        check_precision(self.mixed_precision, self._config)
        if self.mixed_precision == "fp16":
            self.native_amp = True  # Accelerate leaves the forward of a CPU in fp32
            block = self._config["fp16"] = scaling(self._config, self.scaler_handler)
            self.scaler = Scaler(self, block.get("loss_scale") or 2.0 ** block.get("initial_scale_power", 16))

    # ------------------------------------------------------------- prepare --

    def prepare_model(self, model: nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False) -> nn.Module:
        """Notes the model, whose engine is made at its first forward, and returns the model itself. Local."""
        if evaluation_mode:
            return super().prepare_model(model, device_placement, evaluation_mode)
        if next(model.parameters(), None) is None:
            return super().prepare_model(model, device_placement, True)  # a module of a loss: there is nothing that an engine could have
        if self._found(model) is None:
            found = Training(model)
            if self.mixed_precision != "no":
                found.module.forward = self._autocast(found.module.forward)  # type: ignore[method-assign]
            self._trainings[id(found.module)] = found
            found.attach(self)
            self._models.append(model)
        return model

    def _autocast(self, forward: Any) -> Any:
        """Returns a forward that computes in the mixed precision, and whose outputs are fp32, as Accelerate makes it."""
        function = getattr(forward, "__func__", forward)  # a script may have set another one
        made = convert_outputs_to_fp32(get_mixed_precision_context_manager(self.native_amp, self.autocast_handler)(function))
        return MethodType(made, forward.__self__) if function is not forward else made

    def prepare_optimizer(self, optimizer: Any, device_placement: bool | None = None) -> AcceleratedOptimizer:
        """Returns the optimizer, which may be a DummyOptim, in a wrapper whose step is the engine's. Local.

        Raises StateError where its model has an engine already.
        """
        if isinstance(optimizer, Optimizer):
            if not any(optimizer is one for one in self._optimizers):
                self._optimizers.append(optimizer)
            return optimizer
        made = Optimizer(self, self._configured_optimizer(optimizer) if type(optimizer).__name__ == "DummyOptim" else optimizer, optimizer)
        tensors = {id(tensor) for group in made.param_groups for tensor in group["params"]}
        for found in self._trainings.values():
            if found.engine is not None and any(id(param) in tensors for param in found.model.parameters()):
                raise StateError(f"the {type(found.module).__name__} has made its first forward, or save_state() or load_state(), before its "
                                 f"{type(optimizer).__name__} was prepared, so its engine has no updates: prepare the optimizer before")
        self._optimizers.append(made)
        return made

    def _configured_optimizer(self, dummy: Any) -> Configured:
        """Returns what a DummyOptim says. Where the configuration has a rate, that is the rate, as with Accelerate."""
        rate = ((self._config.get("optimizer") or {}).get("params") or {}).get("lr", "auto")
        return Configured(dummy, dummy.lr if rate == "auto" else float(rate))

    def prepare_scheduler(self, scheduler: Any) -> Any:
        """Returns the scheduler in Accelerate's wrapper; for a DummyScheduler one that leaves the steps to the engine. Local."""
        if type(scheduler).__name__ != "DummyScheduler":
            return super().prepare_scheduler(scheduler)
        self._configured.append(Scheduler(self, scheduler))
        return self._configured[-1]

    def _prepare_one(self, obj: Any, first_pass: bool = False, device_placement: Any = None) -> Any:
        kind = type(obj).__name__
        if kind == "DummyOptim" and first_pass:
            return self.prepare_optimizer(obj)
        if kind == "DummyScheduler" and not first_pass:
            return self.prepare_scheduler(obj)
        return super()._prepare_one(obj, first_pass, device_placement)

    def engine(self, model: nn.Module) -> sherd.torch.Engine:
        """Returns the engine of a prepared model, and makes it where it is not made yet. Collective and blocking then."""
        found = self._found(model)
        if found is None:
            raise StateError(f"accelerator.engine() is for a model that prepare() was given, and this {type(model).__name__} is none")
        if found.engine is None:
            self._bind()
            made = filled(self._config_of(found), self._facts(found))
            found.clipping, found.unscheduled = made.clipping, made.unscheduled
            found.engine = sherd.torch.initialize(found.model, made.config, world=world_of(self.state), **self._given(found), **self._options)
            found.take_over_zero_grad()
            for handle in found.handles:
                handle.remove()
            for one in found.optimizers:
                if isinstance(one.optimizer, Configured):
                    one.optimizer = found.engine.optimizer
        return found.engine

    def _found(self, model: Any) -> Training | None:
        """Returns the training of a prepared model; None: it is not prepared."""
        found = self._trainings.get(id(getattr(model, "_orig_mod", model)))
        return found if found is not None and found.is_of(model) else None

    def _bind(self) -> None:
        """Finds the models of each optimizer by its parameters. Raises NotSupportedError for a DummyOptim of several models."""
        models = {id(param): found for found in self._trainings.values() for param in found.model.parameters()}
        for optimizer in self._optimizers:
            tensors = [tensor for group in optimizer.param_groups for tensor in group["params"]]
            owners = {id(models[id(tensor)]): models[id(tensor)] for tensor in tensors if id(tensor) in models}
            if len(owners) > 1 and isinstance(optimizer.optimizer, Configured):
                raise NotSupportedError(f"the {type(optimizer.given).__name__} has parameters of {len(owners)} prepared models: give each model "
                                        f"one of its own, or prepare an optimizer of torch")
            for found in owners.values():
                if not any(optimizer is one for one in found.optimizers):
                    found.optimizers.append(optimizer)

    def _trainings_of(self, optimizer: Optimizer) -> list[Training]:
        """Returns the trainings of an optimizer. Raises StateError where no prepared model has its parameters."""
        self._bind()
        owners = [found for found in self._trainings.values() if any(optimizer is one for one in found.optimizers)]
        if not owners:
            raise StateError(f"no prepared model has the parameters of this {type(optimizer.given).__name__}: give prepare() the model too")
        return owners

    def _config_of(self, _found: Training) -> Mapping[str, Any]:
        """Returns the configuration for the engine of this model. A door over this one fills what it knows."""
        return self._config

    def _accumulation(self) -> int:
        """Returns the usual number of micro-batches in a window. A door over this one may know it from elsewhere."""
        return int(self.gradient_accumulation_steps)

    def _facts(self, found: Training) -> Facts:
        own = [one for one in self._configured if any(one.belongs_to(optimizer) for optimizer in found.optimizers)]
        scheduled = {id(optimizer) for scheduler in self._schedulers for optimizer in scheduler.optimizers}
        return Facts(self._micro_batch_size(), self._accumulation(), self.mixed_precision, found.optimizers,
                     any(id(one) in scheduled for one in found.optimizers), own[0] if own else None, self.num_processes, self.split_batches)

    def _given(self, found: Training) -> dict[str, Any]:
        """Returns what sherd.torch.initialize() gets of a model's optimizers and schedules."""
        schedule = self._facts(found).schedule
        given: dict[str, Any] = {}
        if schedule is not None and schedule.dummy.lr_scheduler_callable is not None:
            given["lr_scheduler"] = schedule.dummy.lr_scheduler_callable
        optimizers = [one.of(found, len(self._trainings_of(one)) > 1) for one in found.optimizers]
        if any(isinstance(one, Configured) for one in optimizers):
            if len(optimizers) > 1:
                raise NotSupportedError(f"the {type(found.module).__name__} has {len(optimizers)} prepared optimizers, and one is a DummyOptim: give "
                                        f"it all parameters, in groups, or prepare optimizers of torch")
            return {"model_parameters": optimizers[0].param_groups, **given}
        return {"optimizer": optimizers[0] if len(optimizers) == 1 else optimizers or None, **given}

    def _micro_batch_size(self) -> int | None:
        """Returns the smallest batch of a rank among the prepared loaders; None: no loader has one."""
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
        for found in self._trainings.values():
            if found.engine is not None and not isinstance(found.engine.hooks, resident.Hooks):
                found.see_cleared()
            if not loss.requires_grad and found.engine is not None and not found.optimizers:
                raise StateError(f"the loss has no gradient: no optimizer of the {type(found.module).__name__} is prepared, so its engine is for "
                                 f"inference. Prepare the optimizer too, before the model's first forward")
        loss = loss / self.gradient_accumulation_steps
        trained = [found for found in self._trainings.values() if found.engine is not None and found.optimizers]
        if len(trained) > 1:
            trained = reached(loss, trained)
        if len(trained) == 1:
            trained[0].engine.backward(loss, retain_graph=bool(kwargs.get("retain_graph")))
        else:
            loss.backward(retain_graph=bool(kwargs.get("retain_graph")))  # each engine counts the backward that reaches it
        self._end_micro_batches()

    def _end_micro_batches(self) -> None:
        for found in self._trainings.values():
            found.end_micro_batch()

    def clip_grad_norm_(self, parameters: torch.Tensor | Iterable[torch.Tensor], max_norm: float, norm_type: float = 2) -> torch.Tensor:
        """Clips the step that follows to this norm, and returns the norm before. Collective, blocking.

        `parameters` are all of one prepared model, or of several. Raises NotSupportedError (some of them alone, another norm), StateError (inside a
        window).
        """
        if float(norm_type) != 2:
            raise NotSupportedError(f"accelerator.clip_grad_norm_(norm_type={norm_type}): an engine clips by the L2 norm")
        if not self.sync_gradients:
            raise StateError("accelerator.clip_grad_norm_() inside a window would clip a part of its gradient: call it where "
                             "accelerator.sync_gradients is True, as Accelerate's examples do")
        tensors = {id(one) for one in ([parameters] if isinstance(parameters, torch.Tensor) else parameters)}
        self._bind()
        clipped = []
        for found in self._trainings.values():
            own = {id(param): param.requires_grad for param in found.model.parameters()}
            if tensors & set(own):
                clipped.append(found)
                tensors |= {number for number, is_trained in own.items() if not is_trained}
        trained = {id(param) for found in clipped for param in found.model.parameters()}
        if not clipped or tensors != trained:
            raise NotSupportedError("accelerator.clip_grad_norm_() of these parameters: an engine clips by the norm of all trainable parameters "
                                    "of a prepared model, model.parameters(), or of several prepared models together")
        norms = [found.norm_before() for found in clipped]
        norm = norms[0] if len(norms) == 1 else math.hypot(*norms)
        for found in clipped:
            found.clip_further(coefficient(norm, float(max_norm)))
        return torch.tensor(norm, device=self.device)

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        """Raises NotSupportedError."""
        raise NotSupportedError("accelerator.clip_grad_value_(): an engine clips by the norm: call accelerator.clip_grad_norm_()")

    def unscale_gradients(self, optimizer: Any = None) -> None:
        """Does nothing: with fp16 the step unscales the gradients, and else they are not scaled. Local."""

    # --------------------------------------------------------------- state --

    def get_state_dict(self, model: nn.Module, unwrap: bool = True) -> dict[str, Any]:
        """Returns the weights by name, in fp32 and on the CPU, on every rank. Collective, blocking. It takes their memory on each rank."""
        found = self._found(model)
        if found is None or found.engine is None:
            return super().get_state_dict(model, unwrap)
        return self._weights(found, "accelerator.get_state_dict()") if found.saved is None else found.saved

    def _has_parts(self, found: Training) -> bool:
        """Whether this rank has only parts of a model's parameters, outside of passes."""
        return found.engine is not None and found.engine.is_sealed and found.engine.zero_optimization_stage() == 3

    def _weights(self, found: Training, call: str, may_be_alone: bool = False) -> dict[str, torch.Tensor]:
        """Returns the weights of an engine by name. Collective, blocking.

        `call` is what the script has called, for messages. With `may_be_alone` it is one that scripts make on one rank, which fails early.
        """
        if found.weights is None:
            meet(call, PATIENCE if may_be_alone else None)
            return found.read()
        return found.weights

    def save_state(self, output_dir: str | None = None, safe_serialization: bool = True, **save_model_func_kwargs: Any) -> Any:
        """Saves all that load_state() needs, with a checkpoint of each engine. Collective, blocking.

        Gradients that no optimizer.step() has used are not saved, as with Accelerate, and stay.
        """
        def save(_models: Any, weights: list[Any], folder: str) -> None:
            for index, found in enumerate(listed):
                found.share_groups()
                found.engine.save_checkpoint(os.path.join(folder, f"{FOLDER}_{index}"), TAG, may_be_in_window=1)
            weights[:] = [one for one in weights if not any(one is found.saved for found in listed)]

        if any(found.engine is not None and found.engine.has_window for found in self._trainings.values()) and self.is_main_process:
            warn("accelerator.save_state() comes inside of a window: the folder has the state after the last optimizer.step(), and not the "
                 "gradients since then, as with Accelerate")
        meet("accelerator.save_state()")
        listed = self._made()
        has_hooks = len(self._save_model_state_pre_hook) > 0  # which get the weights; else nobody reads them
        for found in listed:
            if has_hooks:
                found.weights = self._weights(found, "accelerator.save_state()")
            found.saved = found.weights or {}
        try:
            with self._engines_apart("_save_model_state_pre_hook", save):
                return super().save_state(output_dir, safe_serialization, **save_model_func_kwargs)
        finally:
            for found in listed:
                found.weights = found.saved = None

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
                found.share_groups()
            models[:] = [model for model in models if self._found(model) is None]

        meet("accelerator.load_state()")
        listed = self._made()
        for found in listed:
            found.module.load_state_dict = LoadStateDict(found.module, self)  # type: ignore[method-assign] # for hooks that load weights
        try:
            with self._engines_apart("_load_model_state_pre_hook", load_engines):
                super().load_state(input_dir, load_kwargs, **load_model_func_kwargs)
        finally:
            for found in listed:
                del vars(found.module)["load_state_dict"]
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
        kept, optimizers, scaler = getattr(self, name), self._optimizers, self.scaler
        setattr(self, name, OrderedDict([*kept.items(), ("sherd", hook)]))
        self._optimizers = [one for one in optimizers if not isinstance(one, Optimizer)]
        self.scaler = None  # the checkpoints have the loss scales
        try:
            yield
        finally:
            setattr(self, name, kept)
            self._optimizers, self.scaler = optimizers, scaler

    def free_memory(self, *objects: Any) -> Any:
        """Ends the engines, whose models have no values any more, and does what Accelerate's call does. Collective, blocking."""
        for found in self._trainings.values():
            found.detach()
            if found.engine is not None:
                found.engine.destroy()
        self._trainings.clear()
        self._configured.clear()
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
