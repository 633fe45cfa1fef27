"""The engine as a training script meets it: initialize(), and the object that it returns."""
from __future__ import annotations

import contextlib
import os
from typing import Any, Iterator, Mapping

import torch
from torch import nn

from sherd._library import library
from sherd.config import Config
from sherd.engine import BACKWARD, FORWARD, Engine as Core, Report
from sherd.errors import StateError
from sherd.torch import fill, gathered, generate, optim, resume, tensors, weights
from sherd.torch.guard import Refusals
from sherd.torch.hooks import Hooks
from sherd.torch.say import collective, warn
from sherd.torch.trace import Order, order_of
from sherd.torch.units import Division, Policy, divide, keep_fp32
from sherd.world import World

ConfigSource = str | os.PathLike[str] | Mapping[str, Any]
Example = tuple[tuple[Any, ...], dict[str, Any]]


def initialize(model: nn.Module, config: ConfigSource, optimizer: Any = None, lr_scheduler: Any = None,
               model_parameters: Any = None, world: World | None = None, **options: Any) -> "Engine":
    """The engine that trains `model` as `config` says (a path of a DeepSpeed-style JSON file, or a dict). Collective.

    optimizer: one of torch's, whose type, groups and values are read, or a list of them, of which each updates its own parameters
        ([Muon, AdamW]); else `config` says it.
    lr_scheduler: one of torch's over that optimizer, or a function that makes one of an optimizer; the engine steps it. Of several
        optimizers a list with one for each, None for those that keep their rates, or such a function.
    model_parameters: parameter groups, as torch's optimizers take them; without them and without an optimizer there is one.
    world: by default the launcher's (torchrun, mpirun, srun), else one rank alone. Options are those of Engine.
    """
    return Engine(model, config, optimizer, lr_scheduler, model_parameters, world or World.from_env(), **options)


def arguments_check(model: Any, weights: Any) -> None:
    """What would fail later, and far from its cause: weights are read at the first batch."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"the model is a torch.nn.Module, not {type(model).__name__}")
    unowned_check(model)
    if weights is not None and not os.path.exists(weights):
        raise FileNotFoundError(f"weights={os.fspath(weights)!r} is not there: a safetensors file, a folder of them or their index")


def unowned_check(model: nn.Module, engine: "Engine | None" = None) -> None:
    """No engine but this one has the model's parameters."""
    if any(gathered.owner_of(param) not in (None, engine) for param in model.parameters()):
        raise StateError(f"the {type(model).__name__} is trained by another sherd engine already, which has its memory: make the model "
                         f"anew, and its weights by engine.save_pretrained() and initialize(..., weights=)")


def warn_of_types(division: Division, settings: Config, dtype: torch.dtype) -> None:
    """Warns of a model in 16 bits where the keys choose another type and say nothing of the model's type. The keys win."""
    keys = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
    of_engine, resolved = keys[dtype], settings.resolved()
    for param in division.params:
        key = keys.get(param.tensor.dtype, "fp32")
        if key in ("fp32", of_engine) or param.is_fp32 or not str(resolved[f"{key}.enabled"]["origin"]).startswith(("default", "auto")):
            continue
        warn(f"the model has {key} parameters ({param.name}), and the configuration does not ask for {key}: the configuration wins, "
             f"and the engine computes in {of_engine}. For {key} write \"{key}\": {{\"enabled\": true}}; false instead of true "
             f"keeps {of_engine} and ends this warning")
        return


class Engine:
    """A model whose parameters, gradients and optimizer state are the engine's. Called like the model.

    Options:
        example: a batch, as the model's only argument, a tuple of arguments or a dict of keyword arguments, from which the
            order of the units is found and memory is planned at once. Without it the first batch that comes is taken.
        units: the modules that are gathered as one; sherd.torch.units.divide has the forms.
        init: a function of a module that gives its own parameters values, for models on the meta device.
        same_on_all: every rank's model has the same values already; else those of rank 0 reach all.
        backward_uses: "any" where a step goes through the model as often as it likes (several losses, several forwards
            before a step), at the price of gradients that are whole until the step; None decides by what is known.
        retain_grads: gradients stay in `.grad` until the step.
        weights: a safetensors file, folder or index under the model's names, which every rank reads its part of.
        fp32: modules, in the forms of `units`, whose parameters are fp32 where the engine computes in bf16 or fp16.
    """

    def __init__(self, model: nn.Module, config: ConfigSource, optimizer: Any, lr_scheduler: Any, model_parameters: Any,
                 world: World, *, example: Any = None, units: Policy = None, init: fill.Init | None = None,
                 same_on_all: bool = False,
                 backward_uses: str | None = None, retain_grads: bool = False, fp32: Policy = None,
                 weights: str | os.PathLike[str] | None = None) -> None:
        arguments_check(model, weights)
        self.module, self.world = getattr(model, "_orig_mod", model), world  # below what torch.compile gives
        self._called = model
        model = self.module
        self.division = divide(model, units)
        keep_fp32(model, self.division, fp32)
        with Config(config) as settings:
            for text in settings.warnings if world.rank == 0 else ():
                warn(text)
            self.rates = optim.read(settings, self.division, optimizer, model_parameters, lr_scheduler)
            self.core = Core(world, settings)
            if world.rank == 0:
                warn_of_types(self.division, settings, tensors.compute_dtype(self.core))
        self.device = tensors.device_of(self.core.device)
        self._init, self._same_on_all, self._weights = init, same_on_all, weights
        self._uses, self._retains = backward_uses, retain_grads
        self.order: Order | None = None
        self.waiting: resume.Waiting | None = None
        self._is_failed = self._in_backward = self._has_warned = self._has_warned_of_schedulers = False
        self._micro = 0
        self.report: Report | None = None  # of the last step
        self.boundary: Report | None = None  # of the last update
        if example is not None:
            self.seal(as_call(example))

    @property
    def optimizer(self) -> Any:
        """The groups with their rates, which a scheduler or a script may change; it makes no steps. A list where a list was given."""
        return self.rates.optimizer

    @property
    def lr_scheduler(self) -> Any:
        """What initialize() was given; the engine steps it with each update. Of a list of optimizers a list."""
        return self.rates.scheduler

    # ------------------------------------------------------------ beginning --

    @property
    def is_sealed(self) -> bool:
        return self.core.is_sealed

    def seal(self, example: Example | None = None) -> None:
        """Finds the order, plans, allocates, takes the weights over. Collective; by itself at the first batch."""
        if self.is_sealed and self.waiting is None:
            return
        with torch.inference_mode(False):
            if not self.is_sealed:
                unowned_check(self.module, self)
                if self.waiting is not None:
                    self.waiting.open(self)
                self._seal(example)
            if self.waiting is not None:
                self.waiting.run(self)
                self.waiting = None

    def _seal(self, example: Example | None) -> None:
        self.order = self._agreed_order(example)
        if not self.order.is_traced:
            warn(f"the order of the units is that of registration ({self.order.reason}); gradients are whole until the step")
        self._declare(self.order)
        if self.device.type == "cuda":
            self.core.set_stream(torch.cuda.current_stream(self.device).cuda_stream)
        self.core.seal()
        if self._weights is not None:
            weights.import_weights(self.core, self.module, self.division, self._weights)
            fill.release_all(self.division)
        else:
            fill.fill(self.core, self.module, self.division, self._init, self._same_on_all)
        fill.make_buffers(self.module, self._init)
        self._take_over()

    def _agreed_order(self, example: Example | None) -> Order:
        """Rank 0's order, on all ranks."""
        text = b""
        if self.world.rank == 0:
            dtype = tensors.compute_dtype(self.core)
            text = order_of(self.module, self.division, example, dtype, self.device).to_json().encode()
        order = Order.from_json(self.world.share(text).decode())
        modules = dict(self.module.named_modules())
        for name, unit in order.strays:
            self.division.add_use(name, modules[name], unit)
        for scope in self.division.scopes:
            scope.is_in_place = scope.name in order.in_place
        return order

    def _declare(self, order: Order) -> None:
        info = self.core.info
        is_any = self._uses == "any" or not order.is_traced or info.stage < 2 and not info.is_deterministic
        uses = library().constants["SHERD_USES_ANY"] if is_any else 0
        groups = optim.declare(self.rates.groups, self.core.add_group)
        for unit in self.division.units:
            retains = {"retain_grads": 1} if self._retains else {}
            number = self.core.add_unit(unit.name, backward_uses=uses, **retains)
            for param in unit.params:
                own = {"dtype": library().constants["SHERD_F32"]} if param.is_fp32 else {}
                param.number = self.core.add_param(number, param.name, tuple(param.tensor.shape), frozen=param.is_frozen,
                                                   group=groups.get(id(param.tensor), 0), **own)
        for which, listed in ((FORWARD, order.forward), (BACKWARD, order.backward)):
            for number, held in listed:
                self.core.add_pass(which, number, held)

    def _take_over(self) -> None:
        self.driver = tensors.Driver(self.core, self.division, self._retains)
        tensors.cast_buffers(self.module, tensors.compute_dtype(self.core), self.device)
        self.hooks = Hooks(self.module, self.division, self.driver)
        self.hooks.before_forward, self.hooks.before_backward = self._before_forward, self._before_backward
        self.hooks.attach()
        self.refusals = Refusals(self.module, self.division, self.driver)
        self.refusals.attach()
        self.buffers = weights.Buffers(self.module)
        self._params = {id(param.tensor) for param in self.division.params}
        self.watch = optim.Watch(self) if self.rank == 0 else None
        gathered.mark(self)

    def has_param(self, tensor: torch.Tensor) -> bool:
        return id(tensor) in self._params

    # ------------------------------------------------------------- training --

    @collective("engine(...)")
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's forward. Collective; without gradients (torch.no_grad) an evaluation."""
        if not self.is_sealed or self.waiting is not None:
            self.seal((args, kwargs))
        self._before_forward()  # Ctrl-C may have left a forward in its middle
        return self._called(*args, **kwargs)

    @collective("engine.backward()")
    def backward(self, loss: torch.Tensor, retain_graph: bool = False) -> torch.Tensor:
        """The backward of this micro-batch's mean loss, which is scaled where fp16 is on; the engine averages over ranks and
        micro-batches. Collective. Returns the loss."""
        scale = self.core.loss_scale
        self._in_backward = True
        try:
            (loss if scale == 1 else loss * scale).backward(retain_graph=retain_graph)
        except BaseException:
            self._is_failed = True
            raise
        finally:
            self._in_backward = False
        return loss

    @collective("engine.step()")
    def step(self) -> Report:
        """Once per micro-batch, after its backward; at the boundary the update. Collective."""
        if self._is_failed or self.is_sealed and not self.hooks.is_idle:
            raise StateError("the backward of this micro-batch failed, so there is nothing to step by: the next forward drops the "
                             "window, or engine.discard() does on all ranks")
        rates = self.rates.now()
        if not self.is_sealed:
            raise StateError("engine.step() comes behind the forward and the backward of a micro-batch, and there was none yet: call "
                             "engine(batch) and engine.backward(loss) first")
        if self.is_gradient_accumulation_boundary():
            self._latecomers_check()
        self.driver.end_micro_batch()
        report = self.core.step() if rates is None else self._step_at(rates)
        self._micro = 0 if report.is_boundary else self._micro + 1
        self.report = report
        if report.is_boundary:
            self.boundary = report
            if self.watch is not None:
                self.watch.after_update()
            if report.was_updated:
                self._warn_of_schedulers()
                self.rates.after_update()
            elif report.has_overflow:
                self._warn_of_overflow()
        return report

    def _latecomers_check(self) -> None:
        """No parameter that the engine does not have got a gradient: nobody would update it."""
        for name, tensor in self.module.named_parameters():
            if tensor.grad is not None and not self.has_param(tensor):
                raise StateError(f"parameter {name} came into the model after sherd.torch.initialize, and nothing updates it: change the "
                                 f"model before (resize_token_embeddings, new heads, adapters)")

    def _warn_of_schedulers(self) -> None:
        """Once, where the script steps a scheduler that the engine steps too."""
        if self.rank == 0 and not self._has_warned_of_schedulers and self.rates.are_stepped_twice():
            self._has_warned_of_schedulers = True
            warn("the lr_scheduler that initialize() was given is stepped by engine.step() with each update and by the script too, so "
                 "it counts twice: leave out scheduler.step(), or do not give the scheduler to initialize()")

    def _warn_of_overflow(self) -> None:
        """Once, where no loss scale will mend it: a run whose every gradient is NaN looks like one that does not learn."""
        if self._has_warned or self.rank != 0 or tensors.compute_dtype(self.core) == torch.float16:
            return
        self._has_warned = True
        at_3 = "; at stage 3, a loss that reads parameters outside of their modules is NaN" if self.core.info.stage == 3 else ""
        warn(f"the gradient of update {self.global_steps + 1} has Inf or NaN in it, so the update was skipped{at_3}. "
             f"engine.was_step_applied() tells it of later steps, which do not warn")

    def _step_at(self, rates: list[float]) -> Report:
        report = self.core.prepare()
        if report.is_boundary:
            self.core.apply(group_lr=rates)
            report = self.core.wait()
        return report

    @collective("engine.discard()")
    def discard(self) -> None:
        """Drops the window's gradients and releases everything: after an exception. Collective."""
        self.core.discard()
        self.hooks.forget()
        self.driver.forget()
        self._is_failed = False
        self._micro = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Nothing: gradients begin at zero with each window by themselves."""

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """For scripts that have it: the configuration's accumulation says when ranks exchange what."""
        yield

    def _before_forward(self) -> None:
        if self._is_failed or not self.hooks.is_idle:
            warn("a forward or backward did not end; the gradients of this window are dropped")
            self.discard()

    def _before_backward(self) -> None:
        if not self._in_backward and self.core.loss_scale != 1:
            raise StateError("with fp16 the loss has to be scaled: call engine.backward(loss) in place of loss.backward()")

    # -------------------------------------------------------------- looking --

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether the next step (or the one that follows this backward) updates."""
        return self._micro + 1 >= self.core.info.accumulation

    def get_global_grad_norm(self) -> float | None:
        """The L2 norm of the last update's mean gradient before clipping; None before the first."""
        return None if self.boundary is None else self.boundary.grad_norm

    def get_lr(self) -> list[float]:
        """The rates of the groups."""
        return self.rates.lr(None if self.boundary is None else self.boundary.lr)

    @property
    def loss_scale(self) -> float:
        return self.core.loss_scale

    def _counter(self, name: str) -> int:
        """The counter, of a checkpoint where one waits to be loaded."""
        waiting = {} if self.waiting is None else self.waiting.counters()
        return waiting[name] if name in waiting else getattr(self.core.info, name)

    @property
    def global_steps(self) -> int:
        """Updates done."""
        return self._counter("step")

    @property
    def micro_steps(self) -> int:
        """Micro-batches seen."""
        return self._counter("micro_step")

    @property
    def global_samples(self) -> int:
        """Samples of all ranks seen."""
        return self.micro_steps * self.train_micro_batch_size_per_gpu() * self.world_size

    def was_step_applied(self) -> bool:
        """Whether the last step() updated the parameters: not within a window, nor after an overflow."""
        return self.report is not None and bool(self.report.was_updated)

    def zero_optimization_stage(self) -> int:
        return self.core.info.stage

    def gradient_accumulation_steps(self) -> int:
        return self.core.info.accumulation

    def train_micro_batch_size_per_gpu(self) -> int:
        return self.core.info.micro_batch_size

    def train_batch_size(self) -> int:
        return self.core.info.train_batch_size

    def memory_report(self) -> Report:
        """Bytes of this rank by purpose, planned and held."""
        self.seal()
        return self.core.memory()

    def plan(self, as_json: bool = False) -> str | dict[str, Any]:
        self.seal()
        return self.core.plan(as_json)

    @collective("engine.fingerprint()")
    def fingerprint(self) -> int:
        """Of all master weights. Collective."""
        self.seal()
        return self.core.fingerprint()

    @property
    def rank(self) -> int:
        return self.world.rank

    global_rank = rank  # as DeepSpeed calls it

    @property
    def local_rank(self) -> int:
        """Of the ranks of this host."""
        return self.world.local_rank

    @property
    def world_size(self) -> int:
        return self.world.size

    # -------------------------------------------------------------- weights --

    def state_dict(self) -> weights.StateDict:
        """The weights by name, fp32 and exact, each read when it is asked for. Collective: every rank goes through it."""
        self.seal()
        return weights.StateDict(self)

    @collective("engine.load_state_dict()")
    def load_state_dict(self, values: Mapping[str, torch.Tensor], strict: bool = True) -> tuple[list[str], list[str]]:
        """Writes weights, the same on every rank; the names that were missing and those that nobody has. Collective."""
        self.seal()
        return weights.load_state_dict(self.core, self.module, self.division, values, strict)

    @collective("engine.save_pretrained()")
    def save_pretrained(self, folder: str | os.PathLike[str], dtype: torch.dtype = torch.float32,
                        max_file_bytes: int = 5_000_000_000) -> None:
        """The weights as safetensors under the model's names, with its config.json where it has one. Collective."""
        self.seal()
        weights.save_pretrained(self, folder, dtype, max_file_bytes)

    @collective("engine.save_checkpoint()")
    def save_checkpoint(self, save_dir: str | os.PathLike[str], tag: str | None = None,
                        client_state: Mapping[str, Any] | None = None, **options: Any) -> bool:
        """Saves all that goes on later to save_dir/tag; `client_state` is kept as JSON. Options are those of
        sherd_save_params (is_async, keep_last). Collective."""
        self.seal()
        weights.save_checkpoint(self, save_dir, None if tag is None else str(tag), client_state, **options)
        return True

    @collective("engine.load_checkpoint()")
    def load_checkpoint(self, load_dir: str | os.PathLike[str], tag: str | None = None, load_module_only: bool = False,
                        **options: Any) -> tuple[str | None, dict[str, Any]]:
        """Goes on from what any layout has saved; the folder and the client state, (None, {}) where there is none. Options
        are may_miss and may_be_extra. Before the first batch, the load itself waits for that batch. Collective."""
        return resume.load_checkpoint(self, load_dir, None if tag is None else str(tag), load_module_only, options)

    def evaluating(self, keep_units: int | None = None) -> contextlib.AbstractContextManager[None]:
        """`with engine.evaluating():` passes without gradients, whose units stay gathered as planned. Collective."""
        return generate.evaluating(self, keep_units)

    @collective("engine.generate()")
    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """The generate() of a transformers model. Collective."""
        return generate.generate(self, *args, **kwargs)

    # ---------------------------------------------------------- as a module --

    def train(self, mode: bool = True) -> "Engine":
        self.module.train(mode)
        return self

    def eval(self) -> "Engine":
        return self.train(False)

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("sherd.torch.initialize() gives one object, the engine, not a tuple as DeepSpeed does: engine.optimizer and "
                        "engine.lr_scheduler are attributes of it")

    def __getattr__(self, name: str) -> Any:
        """What the engine has not, the module may have (parameters(), config, generate())."""
        if name.startswith("_") or "module" not in vars(self):
            raise AttributeError(f"{type(self).__name__} has no attribute {name}")
        return getattr(self.module, name)

    # ----------------------------------------------------------------- end --

    def destroy(self) -> None:
        """Frees all memory of the engine. The model's parameters show NaN from then on. May be called twice."""
        if self.is_sealed and "hooks" in vars(self):
            gathered.unmark(self)
            if self.watch is not None:
                self.watch.end()
            self.hooks.detach()
            self.refusals.detach()
            for unit in self.driver.bound:
                for one in unit:
                    one.tensor.grad = None
                    one.tensor.data = tensors.asleep_like(one.awake)
        elif self.waiting is not None:
            self.waiting.open(self)
        self.core.destroy()


def as_call(example: Any) -> Example:
    """A batch as the arguments of a call: a dict is keywords, a tuple positions, anything else the only argument."""
    if isinstance(example, Mapping):
        return (), dict(example)
    return (tuple(example), {}) if isinstance(example, tuple) else ((example,), {})
