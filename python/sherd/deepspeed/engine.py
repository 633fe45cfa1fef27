"""deepspeed.initialize() and the engine that it returns, with DeepSpeed's calls over a sherd.torch.Engine."""
from __future__ import annotations

import base64
import contextlib
import math
import os
from typing import Any, Callable, Iterator, Mapping

import torch
from torch import nn

import sherd.torch
from sherd.config import Config, ConfigSource, parsed, read_config
from sherd.deepspeed import comm, loader, utils
from sherd.deepspeed.refusals import MissingError, missing
from sherd.deepspeed.schedules import Schedule
from sherd.errors import InvalidError, NotSupportedError, StateError

KEPT = "sherd.deepspeed"  # the key in a checkpoint's client state that has what this engine counts itself
GUARD = 1e-6  # in the divisor of DeepSpeed's and torch's clip coefficient
MISSING = {  # attributes of DeepSpeed's engine, and what takes their place
    "monitor": "the blocks \"tensorboard\" and \"csv_monitor\" of the configuration have what the engine writes; write values of your own by a "
               "torch.utils.tensorboard.SummaryWriter",
    "timers": "\"wall_clock_breakdown\": true writes the times to the log, which SHERD_LOG=info shows",
    "tput_timer": "\"wall_clock_breakdown\": true writes the times to the log, which SHERD_LOG=info shows",
    "train_batch": "it is the pipeline engine's: call the engine, engine.backward(loss) and engine.step()",
    "eval_batch": "it is the pipeline engine's: call the engine under torch.no_grad()",
    "flops_profiler": "the engine counts no operations",
    "offload_states": "the blocks \"offload_optimizer\" and \"offload_param\" say where state is",
    "reload_states": "the blocks \"offload_optimizer\" and \"offload_param\" say where state is",
    "coalesce_grad_reduction": "each backward is reduced by itself",
}


# ----------------------------------------------------------- configuration --

def given_config(source: ConfigSource) -> dict[str, Any]:
    """Returns a configuration as a dict of its own: from what sherd takes, or from JSON in base64, as DeepSpeed takes it too.

    Raises what read_config raises.
    """
    if not isinstance(source, str) or os.path.exists(source):
        return read_config(source)
    try:
        text = base64.urlsafe_b64decode(source).decode()
    except ValueError:
        return read_config(source)
    return parsed(text, "the base64 text")


def without_nones(block: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a block without the keys whose value is None, which stands for a default, or an Inf, which JSON does not have."""
    return {key: without_nones(value) if isinstance(value, Mapping) else value for key, value in block.items()
            if value is not None and not (isinstance(value, float) and math.isinf(value))}


def chosen_config(args: Any, config: ConfigSource | None, config_params: ConfigSource | None) -> dict[str, Any]:
    """Returns the one configuration that initialize() was given: `config`, `config_params`, or that of the command line.

    Raises InvalidError where there is none, or where there are two.
    """
    given = {"config=": config, "config_params=": config_params}
    for name in ("deepspeed_config", "deepscale_config"):
        given[f"args.{name} (--{name})"] = args.get(name) if isinstance(args, Mapping) else getattr(args, name, None)
    found = {name: one for name, one in given.items() if one is not None}
    if not found:
        raise InvalidError("deepspeed.initialize() has no configuration: give config=, or --deepspeed_config on the command line")
    if len(found) > 1 and not (len(found) == 2 and config is not None and config is config_params):
        raise InvalidError(f"deepspeed.initialize() has several configurations: {' and '.join(found)}: give one")
    return without_nones(given_config(next(iter(found.values()))))


def own_params(model_parameters: Any) -> list[Any] | None:
    """Returns parameters or groups as a list, whatever they were given as; None: all of the model."""
    if model_parameters is None or isinstance(model_parameters, list):
        return model_parameters
    return [model_parameters] if isinstance(model_parameters, (torch.Tensor, Mapping)) else list(model_parameters)


def mpu_check(mpu: Any) -> None:
    """Raises NotSupportedError for a unit of model parallelism of several ranks."""
    if mpu is not None and getattr(mpu, "get_model_parallel_world_size", lambda: 1)() != 1:
        raise NotSupportedError("deepspeed.initialize(mpu=) with a model that several ranks hold parts of: call sherd.torch.initialize(world=) "
                                "with a world of the ranks that hold the same part (docs/launching.md)")


# --------------------------------------------------------------- initialize --

def initialize(args: Any = None, model: nn.Module | None = None, optimizer: Any = None, model_parameters: Any = None,
               training_data: Any = None, lr_scheduler: Any = None, distributed_port: int = comm.PORT, mpu: Any = None,
               dist_init_required: bool | None = None, collate_fn: Callable[..., Any] | None = None, config: ConfigSource | None = None,
               mesh_param: Any = None, config_params: ConfigSource | None = None,
               sherd_options: Mapping[str, Any] | None = None) -> tuple["DeepSpeedEngine", Any, Any, Any]:
    """Makes the engine that trains `model`. Returns (engine, optimizer, data loader, scheduler); a part that there is not is None.

    The arguments are DeepSpeed's, and sherd_options has options of sherd.torch.Engine, such as {"backward_uses": "any"}. An optimizer or a
    scheduler of the script's goes before that of the configuration. Without any optimizer, the engine is for inference. Collective,
    blocking. Raises what sherd.torch.initialize raises, and NotSupportedError for what an engine cannot have, by its name.
    """
    if model is None:
        raise InvalidError("deepspeed.initialize() needs a model")
    mpu_check(mpu)
    if mesh_param is not None:
        raise NotSupportedError("deepspeed.initialize(mesh_param=): the engine has data parallelism alone")
    settings = chosen_config(args, config, config_params)
    comm.init_distributed(distributed_port=distributed_port, dist_init_required=dist_init_required)
    is_managed = settings.pop("managed_gradient_accumulation", True)
    settings["sherd"] = {**settings.get("sherd", {}), "open_windows": True}

    params = own_params(model_parameters)
    if optimizer is not None:
        if settings.pop("optimizer", None) is not None:
            utils.log_dist("the optimizer of the script goes before that of the configuration", ranks=[0])
        if not isinstance(optimizer, torch.optim.Optimizer) and not isinstance(optimizer, (list, tuple)):
            optimizer = optimizer([one for one in model.parameters()] if params is None else params)
    elif "optimizer" not in settings:
        if params is not None:
            raise InvalidError("deepspeed.initialize() was given model_parameters and no optimizer: write the block \"optimizer\" into the "
                               "configuration, or give optimizer=")
        settings["optimizer"] = {"type": "none"}
    if lr_scheduler is not None and settings.pop("scheduler", None) is not None:
        utils.log_dist("the scheduler of the script goes before that of the configuration", ranks=[0])
    if isinstance(optimizer, torch.optim.Optimizer) and callable(lr_scheduler) and not hasattr(lr_scheduler, "step"):
        lr_scheduler = lr_scheduler(optimizer)
    if isinstance(lr_scheduler, Schedule):
        settings["scheduler"] = {"type": lr_scheduler.kind, "params": lr_scheduler.params}
    torchs = None if isinstance(lr_scheduler, Schedule) else not_ours(lr_scheduler)

    leaves = utils.get_z3_leaf_modules(model)
    options = {**({"units": leaves} if leaves else {}), **(sherd_options or {})}
    engine = sherd.torch.initialize(model, settings, optimizer=optimizer, lr_scheduler=torchs, model_parameters=params, world=comm.world(),
                                    **options)
    made = DeepSpeedEngine(engine, settings, is_managed, collate_fn)
    if isinstance(lr_scheduler, Schedule):
        lr_scheduler.engine = made
        made.lr_scheduler = lr_scheduler
    if training_data is not None:
        made.training_dataloader = made.deepspeed_io(training_data)
    return made, made.optimizer, made.training_dataloader, made.lr_scheduler


def not_ours(scheduler: Any) -> Any:
    """Returns a scheduler of torch's, or a function that makes one and refuses one of DeepSpeed's: it would come too late."""
    if scheduler is None or hasattr(scheduler, "step") and not isinstance(scheduler, type):
        return scheduler

    def made(optimizer: torch.optim.Optimizer) -> Any:
        found = scheduler(optimizer)
        if isinstance(found, Schedule):
            raise NotSupportedError(f"deepspeed.initialize(lr_scheduler=) as a function that makes a {found.kind}, for an optimizer of the "
                                    f"configuration: write the block \"scheduler\" into the configuration, or give optimizer= too")
        return found

    return made


# ------------------------------------------------------------------- engine --

class DeepSpeedEngine(nn.Module):
    """A model on an engine of sherd's, with the calls of DeepSpeed's engine. It is called like the model.

    `engine` is the sherd.torch.Engine, which has more calls. docs/deepspeed.md lists DeepSpeed's. Attributes: `module` (the model),
    `optimizer` (the torch optimizer that has the groups with their rates; None: the engine is for inference), `lr_scheduler`,
    `training_dataloader`, `config`, `micro_steps` (calls of step()), `skipped_steps` (updates that an overflow prevented).
    """

    def __init__(self, engine: sherd.torch.Engine, config: dict[str, Any], is_managed: bool, collate_fn: Callable[..., Any] | None) -> None:
        super().__init__()
        self.engine, self.config, self.collate_fn = engine, config, collate_fn
        self.module = engine.module
        self.training = engine.module.training
        with Config(config) as settings:
            self._clipping = float(settings.resolved()["gradient_clipping"]["value"])
            scheduler = settings.resolved().get("scheduler.type", {}).get("value")
        self.optimizer = None if config.get("optimizer", {}).get("type") == "none" else engine.optimizer
        self.lr_scheduler = Schedule.of(self, scheduler) if scheduler else engine.lr_scheduler
        self.training_dataloader: Any = None
        self.micro_steps = self.skipped_steps = 0
        self._accumulation = engine.gradient_accumulation_steps()
        self._micro_batch = engine.train_micro_batch_size_per_gpu()
        self._is_managed = is_managed
        self._boundary: bool | None = None  # what set_gradient_accumulation_boundary() said last
        self._ended = 0  # micro-batches of the window that are over
        self._is_failed = self._is_stepping = self._was_applied = False
        self._norm: float | None = None
        self._note_scale(False)

    # -------------------------------------------------------------- training --

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Runs the model's forward. Collective, blocking. Under torch.no_grad() it is an evaluation."""
        if torch.is_grad_enabled() and not self._is_failed:
            self._end_micro_batch()  # several backwards before a step are as many micro-batches
        self._is_failed = False  # the engine drops the gradients of a failed backward
        return self.engine(*inputs, **kwargs)

    def backward(self, loss: torch.Tensor, retain_graph: bool = False, scale_wrt_gas: bool = True) -> torch.Tensor:
        """Runs the backward of `loss`, a scalar, and returns it divided by the accumulation. Collective, blocking.

        The gradient of a window is the sum of its losses divided by the accumulation, averaged over ranks. With `scale_wrt_gas` False
        nobody divides.
        """
        self._trains_check("backward")
        try:
            self.engine.backward(loss if scale_wrt_gas else loss * self._accumulation, retain_graph=retain_graph)
        except BaseException:
            self._ended, self._is_failed = 0, True
            raise
        if self._boundary is False or not self._is_managed:
            self._end_micro_batch()
        return loss / self._accumulation if scale_wrt_gas else loss

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Returns the loss for a loss.backward() of the script's. Raises NotSupportedError with fp16: engine.backward() scales."""
        if self.engine.loss_scale != 1:
            raise NotSupportedError("engine.scale(loss) with fp16: call engine.backward(loss), which scales it")
        return loss

    def step(self, lr_kwargs: Mapping[str, Any] | None = None) -> None:
        """Ends the micro-batch; at the boundary it updates the parameters and steps the scheduler. Collective, blocking."""
        self._trains_check("step")
        if lr_kwargs:
            raise NotSupportedError(f"engine.step(lr_kwargs={dict(lr_kwargs)}): the engine steps the scheduler without arguments. Do not give "
                                    f"such a scheduler to initialize(), and step it in the script")
        self._was_applied = False
        self._is_stepping = True
        try:
            if self.is_gradient_accumulation_boundary():
                self._update()
            else:
                self._end_micro_batch()
        finally:
            self._is_stepping = False
        self.micro_steps += 1

    def _trains_check(self, call: str) -> None:
        if self.optimizer is None:
            raise StateError(f"engine.{call}(): deepspeed.initialize() was given no optimizer, so the engine is for inference: write the block "
                             f"\"optimizer\" into the configuration, or give optimizer=")

    def _end_micro_batch(self) -> None:
        """Ends the micro-batch of the last backward, if it is not over. The window stays open. Collective, blocking."""
        if self.engine.has_backward:
            self.engine.prepare_step()
            self._ended += 1

    def _update(self) -> None:
        """Ends the window and updates the parameters. Collective, blocking."""
        if not self.engine.has_window:
            raise StateError("engine.step() at a boundary comes after engine.backward(loss), and there was no backward since the last update")
        many = self._ended + self.engine.has_backward
        self.engine.close_window()
        norm = self.engine.prepare_step().grad_norm
        ratio = many / self._accumulation  # the engine takes the mean of the losses, and DeepSpeed this multiple of it
        self._norm = ratio * norm
        report = self.engine.apply_step(clip_coefficient=None if ratio == 1 else ratio * coefficient(self._norm, self._clipping))
        self._ended = 0
        self._was_applied = bool(report.was_updated)
        self.skipped_steps += bool(report.has_overflow)
        self._note_scale(bool(report.has_overflow))

    def _note_scale(self, has_overflow: bool) -> None:
        """Shows at the optimizer what DeepSpeed's has there: the loss scale, and whether the last update was skipped."""
        if self.optimizer is not None:
            for one in self.optimizer if isinstance(self.optimizer, list) else [self.optimizer]:
                one.overflow = has_overflow
                one.loss_scale = one.cur_scale = self.engine.loss_scale

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients of the backward passes since the last step(), as sherd.torch.Engine.zero_grad does. Collective then."""
        self.engine.zero_grad()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """A context that does nothing: the boundary decides when ranks exchange. It may be used at every stage."""
        yield

    def allreduce_gradients(self, bucket_size: int = 0) -> None:
        """Does nothing: the engine reduces gradients as they come, or at the step."""

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether the step() of the present micro-batch updates. Local."""
        if not self._is_managed:
            return self._is_stepping
        return (self.micro_steps + 1) % self._accumulation == 0 if self._boundary is None else self._boundary

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        """Says whether the backward that follows is the last one of its window, in place of the counter. Local; on all ranks alike."""
        if not self._is_managed:
            raise StateError("engine.set_gradient_accumulation_boundary() with \"managed_gradient_accumulation\": false: each step() updates")
        self._boundary = bool(is_boundary)

    # --------------------------------------------------------------- looking --

    def was_step_applied(self) -> bool:
        """Whether the last step() updated the parameters. Local."""
        return self._was_applied

    def get_global_grad_norm(self) -> float | None:
        """Returns the norm of the gradient of the last update, before clipping; None before the first. Local."""
        return self._norm

    def get_lr(self) -> list[float]:
        """Returns the rates of the groups for the next update. Local."""
        return self._of_groups("lr") if self.engine.is_sealed else self.engine.get_lr()  # the groups have a schedule's from then on

    def get_mom(self) -> list[Any]:
        """Returns the betas of the groups, or the momentum of SGD's. Local."""
        return self._of_groups("momentum" if self.optimizer_name() in ("SGD", "RMSprop") else "betas")

    def _of_groups(self, key: str) -> list[Any]:
        listed = self.optimizer if isinstance(self.optimizer, list) else [] if self.optimizer is None else [self.optimizer]
        return [group.get(key, 0.0) for one in listed for group in one.param_groups]

    @property
    def global_steps(self) -> int:
        """The number of updates, with those that were skipped. Local."""
        return self.engine.global_steps + self.skipped_steps

    @property
    def global_samples(self) -> int:
        """The number of samples that all ranks together have seen. Local."""
        return self.engine.global_samples

    def gradient_accumulation_steps(self) -> int:
        """Returns the number of micro-batches in a window, by which backward() divides. Local."""
        return self._accumulation

    def train_micro_batch_size_per_gpu(self) -> int:
        """Returns the samples of a rank's micro-batch. Local."""
        return self._micro_batch

    def train_batch_size(self) -> int:
        """Returns the samples of an update over all ranks. Local."""
        return self._micro_batch * self._accumulation * self.engine.world_size

    def get_batch_info(self) -> tuple[int, int, int]:
        """Returns the samples of an update, those of a rank's micro-batch, and the number of micro-batches in a window. Local."""
        return self.train_batch_size(), self._micro_batch, self._accumulation

    def set_train_batch_size(self, train_batch_size: int) -> None:
        """Changes the accumulation, so that an update has so many samples. Local; between windows, on all ranks alike."""
        step = self._micro_batch * self.engine.world_size
        if train_batch_size <= 0 or train_batch_size % step:
            raise InvalidError(f"train_batch_size {train_batch_size} is no multiple of {step}, the micro-batch of {self._micro_batch} on "
                               f"{self.engine.world_size} ranks")
        self._accumulation = train_batch_size // step

    def set_train_micro_batch_size(self, micro_batch_size: int) -> None:
        """Changes the samples of a rank's micro-batch that the engine reports. Local."""
        self._micro_batch = micro_batch_size

    def zero_optimization(self) -> bool:
        """Whether there is a stage of ZeRO. Local."""
        return self.zero_optimization_stage() > 0

    def zero_optimization_stage(self) -> int:
        """Returns the stage, 0 to 3. Local."""
        return self.engine.zero_optimization_stage()

    def zero_optimization_partition_gradients(self) -> bool:
        """Whether gradients are divided over the ranks. Local."""
        return self.zero_optimization_stage() >= 2

    def zero_optimization_partition_weights(self) -> bool:
        """Whether parameters are divided over the ranks. Local."""
        return self.zero_optimization_stage() == 3

    def zero_gather_16bit_weights_on_model_save(self) -> bool:
        """Whether save_16bit_model() writes weights at stage 3. Local."""
        return bool(self.config.get("zero_optimization", {}).get("stage3_gather_16bit_weights_on_model_save"))

    def fp16_enabled(self) -> bool:
        """Whether the engine computes in fp16. Local."""
        return self._is_enabled("fp16")

    def bfloat16_enabled(self) -> bool:
        """Whether the engine computes in bf16. Local."""
        return self._is_enabled("bf16") or self._is_enabled("bfloat16")

    def _is_enabled(self, key: str) -> bool:
        return self.config.get(key, {}).get("enabled", False) is True

    def gradient_clipping(self) -> float:
        """Returns the norm to which updates are clipped; 0: none. Local."""
        return self._clipping

    def steps_per_print(self) -> int | None:
        """Returns the key steps_per_print. Local."""
        return self.config.get("steps_per_print")

    def optimizer_name(self) -> str | None:
        """Returns the type of the optimizer. Local."""
        return self.config["optimizer"].get("type") if "optimizer" in self.config else type(self.optimizer).__name__

    def optimizer_params(self) -> dict[str, Any] | None:
        """Returns the numbers of the optimizer in the configuration. Local."""
        return self.config.get("optimizer", {}).get("params")

    def scheduler_name(self) -> str | None:
        """Returns the type of the scheduler in the configuration. Local."""
        return self.config.get("scheduler", {}).get("type")

    def scheduler_params(self) -> dict[str, Any] | None:
        """Returns the numbers of the scheduler in the configuration. Local."""
        return self.config.get("scheduler", {}).get("params")

    @property
    def device(self) -> torch.device:
        """The device on which the engine computes. Local."""
        return self.engine.device

    @property
    def global_rank(self) -> int:
        """This rank's number. Local."""
        return self.engine.rank

    @property
    def local_rank(self) -> int:
        """This rank's number among the ranks of its host. Local."""
        return self.engine.local_rank

    @property
    def world_size(self) -> int:
        """The number of ranks. Local."""
        return self.engine.world_size

    dp_world_size = world_size
    mp_world_size = 1

    def deepspeed_io(self, dataset: Any, batch_size: int | None = None, route: str = "train", pin_memory: bool = True,
                     data_sampler: Any = None, collate_fn: Callable[..., Any] | None = None,
                     num_local_io_workers: int | None = None) -> loader.DeepSpeedDataLoader:
        """Returns a loader of a rank's part of a dataset, in batches of train_micro_batch_size_per_gpu. Local."""
        return loader.made(dataset, batch_size or self._micro_batch, self.engine.world_size, self.engine.rank, shuffle=route == "train",
                           sampler=data_sampler, collate_fn=collate_fn or self.collate_fn, workers=num_local_io_workers,
                           drop_last=bool(self.config.get("dataloader_drop_last")), pin_memory=pin_memory)

    def compile(self, backend: Any = "inductor", compile_kwargs: Mapping[str, Any] | None = None, schedule: Any = None,
                compiled_autograd_enabled: bool = False) -> None:
        """Compiles the module, as engine.module.compile() does. Local."""
        if schedule is not None or compiled_autograd_enabled:
            raise NotSupportedError("engine.compile(schedule=, compiled_autograd_enabled=): DeepCompile's passes are not in the engine, which "
                                    "compiles by torch.compile")
        self.module.compile(backend=backend, **(compile_kwargs or {}))

    def empty_partition_cache(self) -> None:
        """Does nothing: the engine keeps no gathered parameter between steps."""

    # --------------------------------------------------------------- weights --

    def save_checkpoint(self, save_dir: str | os.PathLike[str], tag: Any = None, client_state: Mapping[str, Any] | None = None,
                        save_latest: bool = True, exclude_frozen_parameters: bool = False) -> bool:
        """Saves a checkpoint of sherd's (docs/checkpoints.md), under global_stepN without a tag. Returns True. Collective, blocking.

        Gradients that no update has used yet are not saved, as with DeepSpeed, and stay.
        """
        if not save_latest:
            raise NotSupportedError("engine.save_checkpoint(save_latest=False): the file `latest` names the last checkpoint of a folder: save to "
                                    "another folder")
        if exclude_frozen_parameters:
            raise NotSupportedError("engine.save_checkpoint(exclude_frozen_parameters=True): a checkpoint has the whole model")
        state = {**(client_state or {}), KEPT: {"skipped_steps": self.skipped_steps}}
        return self.engine.save_checkpoint(save_dir, f"global_step{self.global_steps}" if tag is None else str(tag), state,
                                           may_be_in_window=1)

    def load_checkpoint(self, load_dir: str | os.PathLike[str], tag: Any = None, load_module_strict: bool = True,
                        load_optimizer_states: bool = True, load_lr_scheduler_states: bool = True, load_module_only: bool = False,
                        custom_load_fn: Any = None) -> tuple[str | None, dict[str, Any] | None]:
        """Loads what save_checkpoint() saved, on any number of ranks, stage and precision. Collective, blocking.

        Returns the checkpoint's folder and the client state; (None, None), with a warning, where there is none.
        """
        if custom_load_fn is not None:
            raise NotSupportedError("engine.load_checkpoint(custom_load_fn=): give load_module_strict=False, or write the weights by "
                                    "engine.load_module_state_dict()")
        if load_optimizer_states != load_lr_scheduler_states and not load_module_only:
            raise NotSupportedError("engine.load_checkpoint() loads the states of the optimizer and of the scheduler together, or neither of them: "
                                    "give load_module_only=True for the weights alone")
        foreign_check(load_dir, tag)
        only = load_module_only or not load_optimizer_states
        may = {} if load_module_strict else {"may_miss": ["*"], "may_be_extra": ["*"]}
        path, state = self.engine.load_checkpoint(load_dir, None if tag is None else str(tag), load_module_only=only, **may)
        if path is None:
            return None, None
        kept = state.pop(KEPT, {})
        self._ended = 0
        if not only:
            self.skipped_steps = int(kept.get("skipped_steps", 0))
        return path, state

    def module_state_dict(self, destination: Any = None, prefix: str = "", keep_vars: bool = False,
                          exclude_frozen_parameters: bool = False) -> dict[str, Any]:
        """Returns the module's state_dict; at stage 3 the whole weights on every rank, on the CPU, which is collective and blocking."""
        frozen = self._frozen() if exclude_frozen_parameters else set()
        if self.zero_optimization_partition_weights():
            found = {prefix + name: value for name, value in self._whole(everywhere=True).items() if name not in frozen}
            return found if destination is None else destination.update(found) or destination
        found = self.module.state_dict(destination=destination, prefix=prefix, keep_vars=keep_vars)
        for name in frozen:
            found.pop(prefix + name, None)
        return found

    def load_module_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True, custom_load_fn: Any = None, **unknown: Any) -> None:
        """Writes the weights of checkpoint["module"], the same on every rank. Collective, blocking."""
        if custom_load_fn is not None or any(unknown.values()):
            raise NotSupportedError(f"engine.load_module_state_dict({', '.join(['custom_load_fn', *unknown])}): only strict= is known")
        self.engine.load_state_dict(checkpoint["module"], strict=strict)

    def _frozen(self) -> set[str]:
        return {name for name, param in self.module.named_parameters(remove_duplicate=False) if not param.requires_grad}

    def _whole(self, everywhere: bool) -> dict[str, torch.Tensor]:
        """Returns the whole weights in the types that the module has, on rank 0 or on every rank. Collective, blocking."""
        types = {name: one.dtype for name, one in self.module.named_parameters(remove_duplicate=False)}
        found = {}
        for name, value in self.engine.state_dict().items():
            if everywhere or self.global_rank == 0:
                found[name] = value.to(types.get(name, value.dtype))
        return found

    def _zero3_consolidated_16bit_state_dict(self, exclude_frozen_parameters: bool = False) -> dict[str, torch.Tensor] | None:
        """Returns the whole weights on rank 0, on the CPU, and None on other ranks. Collective, blocking. Stage 3 alone, as there."""
        if not self.zero_optimization_partition_weights():
            raise ValueError("engine._zero3_consolidated_16bit_state_dict() is for stage 3: call engine.module_state_dict()")
        found = self._whole(everywhere=False)
        for name in self._frozen() if exclude_frozen_parameters else ():
            found.pop(name, None)
        return found if self.global_rank == 0 else None

    _consolidated_16bit_state_dict = _zero3_consolidated_16bit_state_dict

    def save_16bit_model(self, save_dir: str | os.PathLike[str], save_filename: str = "pytorch_model.bin",
                         exclude_frozen_parameters: bool = False) -> bool:
        """Writes the module's weights by torch.save. Returns whether it did; at stage 3 the configuration says. Collective, blocking.

        engine.engine.save_pretrained() writes safetensors, without the whole model in memory.
        """
        if self.zero_optimization_partition_weights():
            if not self.zero_gather_16bit_weights_on_model_save():
                utils.logger.warning("the model was not saved to %s: zero_optimization.stage3_gather_16bit_weights_on_model_save is not true",
                                     os.path.join(save_dir, save_filename))
                return False
            found = self._zero3_consolidated_16bit_state_dict(exclude_frozen_parameters)
        else:
            found = self.module_state_dict(exclude_frozen_parameters=exclude_frozen_parameters)
        if self.global_rank == 0:
            os.makedirs(save_dir, exist_ok=True)
            torch.save({name: value.clone() for name, value in (found or {}).items()}, os.path.join(save_dir, save_filename))
        self.engine.world.barrier()
        return True

    save_fp16_model = save_16bit_model

    # ------------------------------------------------------------------- end --

    def destroy(self) -> None:
        """Frees all memory of the engine. The parameters show NaN from then on. Collective where an asynchronous save runs."""
        self.engine.destroy()

    def __getattr__(self, name: str) -> Any:
        """Returns the module's attribute where the engine has none of that name, such as config or generate()."""
        if name in MISSING:
            raise MissingError(f"sherd.deepspeed's engine has no {name}: {MISSING[name]}")
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("__") or "module" not in self.__dict__.get("_modules", {}):
                raise
        try:
            return getattr(self.module, name)
        except AttributeError:
            raise missing(f"engine.{name}") from None


def coefficient(norm: float, most: float) -> float:
    """The factor that clips a norm to `most` (0: none); 1 for a norm that is not finite, with which there is no update."""
    return min(1.0, most / (norm + GUARD)) if most > 0 and math.isfinite(norm) else 1.0


def foreign_check(load_dir: str | os.PathLike[str], tag: Any) -> None:
    """Raises InvalidError for a checkpoint that DeepSpeed has written."""
    latest = os.path.join(load_dir, "latest")
    if tag is None and os.path.isfile(latest):
        with open(latest, encoding="utf-8") as file:
            tag = file.read().strip()
    folder = os.path.join(load_dir, str(tag))
    if tag is not None and os.path.isdir(folder) and any(name.endswith("model_states.pt") for name in os.listdir(folder)):
        raise InvalidError(f"{folder} is a checkpoint of DeepSpeed's: tools/import_deepspeed.py turns it into one that load_checkpoint() reads "
                           f"(docs/weights.md)")
