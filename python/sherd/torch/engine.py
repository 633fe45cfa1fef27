"""The engine for a training script: initialize(), and the object that it returns."""
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
    """Makes the engine that trains `model`, with the configuration `config`. Collective.

    Arguments:
        model: its parameters become the engine's memory at the first batch. They may be on the CPU, a GPU or the meta device.
        config: the path of a DeepSpeed-style JSON file, or a dict with the same keys (docs/configuration.md).
        optimizer: an optimizer of torch, whose type, groups and values are read, or a list of them, such as [Muon, AdamW], of
            which each updates its own parameters. Without it, the configuration says which one.
        lr_scheduler: a scheduler of torch over that optimizer, or a function that makes one from an optimizer. The engine steps
            it with each update. For a list of optimizers: a list with a scheduler or None for each, or such a function.
        model_parameters: parameter groups, as torch's optimizers take them. Without them and without an optimizer there is one.
        world: the ranks that train together. Default: those of the launcher (torchrun, mpirun, srun), else one rank alone.
        options: those of Engine.

    Errors: InvalidError names a key or an argument that is wrong. NotSupportedError names what sherd does not have. StateError:
    another engine has the model. TypeError, FileNotFoundError: `model` or `weights`.
    """
    return Engine(model, config, optimizer, lr_scheduler, model_parameters, world or World.from_env(), **options)


def arguments_check(model: Any, weights: Any) -> None:
    """Refuses arguments that would fail later and far from their cause: the weights are read at the first batch."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"the model is a torch.nn.Module, not {type(model).__name__}")
    unowned_check(model)
    if weights is not None and not os.path.exists(weights):
        raise FileNotFoundError(f"weights={os.fspath(weights)!r} is not there: a safetensors file, a folder of them or their index")


def unowned_check(model: nn.Module, engine: "Engine | None" = None) -> None:
    """Refuses a model whose parameters another engine has (StateError)."""
    if any(gathered.owner_of(param) not in (None, engine) for param in model.parameters()):
        raise StateError(f"the {type(model).__name__} is trained by another sherd engine already, which has its memory: make the model "
                         f"anew, and its weights by engine.save_pretrained() and initialize(..., weights=)")


def warn_of_types(division: Division, settings: Config, dtype: torch.dtype) -> None:
    """Warns if the model is in 16 bits, and the keys choose another type and do not mention the model's type. The keys win."""
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
    """A model whose parameters, gradients and optimizer state are in an engine. It is called like the model.

    The parameters of the model are fp32, bf16 or fp16, as the configuration says. At stage 3 a parameter shows NaN while its
    module does not run. All calls marked "collective" are made by every rank, in the same order, and block until the ranks that
    they need have come.

    Options:
        example: a batch, as the model's only argument, a tuple of arguments or a dict of keyword arguments. The order of the
            units is found from it, and memory is planned at once. Without it, this happens at the first batch.
        units: the modules whose parameters are gathered together; sherd.torch.units.divide has the forms.
        init: a function that gives a module's own parameters their values, for models on the meta device.
        same_on_all: True: the model has the same values on every rank already. Otherwise rank 0's values go to all ranks.
        backward_uses: "any": backward may go through a module any number of times before a step (several losses, several
            forwards). Gradients are then whole until the step, which takes memory. None: the engine decides from the order.
        retain_grads: True: gradients stay in `.grad` until the step.
        weights: a safetensors file, folder or index with the names of the model. Every rank reads its own part.
        fp32: modules, in the forms of `units`, whose parameters stay fp32 when the engine computes in bf16 or fp16.
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
        """The optimizer with the groups and their rates, which a scheduler or a script may change. It makes no steps. A list if a
        list was given."""
        return self.rates.optimizer

    @property
    def lr_scheduler(self) -> Any:
        """The scheduler that initialize() was given; the engine steps it with each update. A list for a list of optimizers."""
        return self.rates.scheduler

    # ------------------------------------------------------------ beginning --

    @property
    def is_sealed(self) -> bool:
        """Whether the plan is made and the memory allocated."""
        return self.core.is_sealed

    def seal(self, example: Example | None = None) -> None:
        """Finds the order of the units, makes the plan, allocates memory and takes the weights over. Collective, blocking.

        It happens by itself at the first batch. `example` is (args, kwargs) of a call of the model; without it, the order is that
        in which the modules are registered. OutOfMemoryError says what is missing and the nearest setting that fits.
        """
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
        """Returns the order that rank 0 finds, on all ranks."""
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
        self.watch = optim.Watch(self)
        gathered.mark(self)

    def has_param(self, tensor: torch.Tensor) -> bool:
        """Whether the engine has this parameter."""
        return id(tensor) in self._params

    # ------------------------------------------------------------- training --

    @collective("engine(...)")
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the model and returns its output. Collective. Under torch.no_grad() it is an evaluation.

        The first call seals the engine, and loads the checkpoint that waits for it. If the last forward or backward did not end,
        its window is dropped first, with a warning.
        """
        if not self.is_sealed or self.waiting is not None:
            self.seal((args, kwargs))
        self._before_forward()  # Ctrl-C may have left a forward in its middle
        return self._called(*args, **kwargs)

    @collective("engine.backward()")
    def backward(self, loss: torch.Tensor, retain_graph: bool = False) -> torch.Tensor:
        """Runs the backward of this micro-batch and returns `loss`. Collective.

        `loss` is a scalar: the mean over the samples of this rank's micro-batch. The engine multiplies it by the loss scale of
        fp16, and averages the gradients over micro-batches and ranks.
        """
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
        """Ends a micro-batch, after its backward; at the boundary of a window it also updates the parameters. Collective,
        blocking.

        Returns the report, with the fields of sherd_step_report. StateError: there was no forward and backward, or they failed; a
        parameter was added to the model after initialize().
        """
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
            self.watch.after_update()
            if report.was_updated:
                self._warn_of_schedulers()
                self.rates.after_update()
            elif report.has_overflow:
                self._warn_of_overflow()
        return report

    def _latecomers_check(self) -> None:
        """Refuses a gradient of a parameter that the engine does not have, since nothing would update it."""
        for name, tensor in self.module.named_parameters():
            if tensor.grad is not None and not self.has_param(tensor):
                raise StateError(f"parameter {name} came into the model after sherd.torch.initialize, and nothing updates it: change the "
                                 f"model before (resize_token_embeddings, new heads, adapters)")

    def _warn_of_schedulers(self) -> None:
        """Warns once if the script steps a scheduler that the engine steps too."""
        if self.rank == 0 and not self._has_warned_of_schedulers and self.rates.are_stepped_twice():
            self._has_warned_of_schedulers = True
            warn("the lr_scheduler that initialize() was given is stepped by engine.step() with each update and by the script too, so "
                 "it counts twice: leave out scheduler.step(), or do not give the scheduler to initialize()")

    def _warn_of_overflow(self) -> None:
        """Warns once if a gradient has Inf or NaN and there is no loss scale to lower. Otherwise such a run looks as if it did
        not learn."""
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
        """Drops the gradients of the window and releases all modules, after an exception. Collective, blocking."""
        self.core.discard()
        self.hooks.forget()
        self.driver.forget()
        self._is_failed = False
        self._micro = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Does nothing: the gradients of each window begin at zero."""

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Does nothing, for scripts that use it: the accumulation in the configuration decides when ranks exchange gradients."""
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
        """Whether the next step (the one that follows this backward) updates the parameters. Local."""
        return self._micro + 1 >= self.core.info.accumulation

    def get_global_grad_norm(self) -> float | None:
        """Returns the L2 norm of the last update's mean gradient before clipping; None before the first update. Local."""
        return None if self.boundary is None else self.boundary.grad_norm

    def get_lr(self) -> list[float]:
        """Returns the learning rate of each group. Local."""
        return self.rates.lr(None if self.boundary is None else self.boundary.lr)

    @property
    def loss_scale(self) -> float:
        """The factor by which backward() multiplies the loss; 1 unless fp16 is on."""
        return self.core.loss_scale

    def _counter(self, name: str) -> int:
        """A counter of the engine, or of the checkpoint that waits to be loaded."""
        waiting = {} if self.waiting is None else self.waiting.counters()
        return waiting[name] if name in waiting else getattr(self.core.info, name)

    @property
    def global_steps(self) -> int:
        """The number of updates so far, of earlier runs too. Skipped ones do not count."""
        return self._counter("step")

    @property
    def micro_steps(self) -> int:
        """The number of micro-batches so far, per rank."""
        return self._counter("micro_step")

    @property
    def global_samples(self) -> int:
        """The number of samples so far, over all ranks."""
        return self.micro_steps * self.train_micro_batch_size_per_gpu() * self.world_size

    def was_step_applied(self) -> bool:
        """Whether the last step() updated the parameters: it does not inside a window or after an overflow. Local."""
        return self.report is not None and bool(self.report.was_updated)

    def zero_optimization_stage(self) -> int:
        """The ZeRO stage, 0 to 3."""
        return self.core.info.stage

    def gradient_accumulation_steps(self) -> int:
        """The number of micro-batches per update and rank."""
        return self.core.info.accumulation

    def train_micro_batch_size_per_gpu(self) -> int:
        """The number of samples per micro-batch and rank."""
        return self.core.info.micro_batch_size

    def train_batch_size(self) -> int:
        """The number of samples per update, over all ranks."""
        return self.core.info.train_batch_size

    def memory_report(self) -> Report:
        """Returns the bytes of this rank by purpose, planned and held (sherd_memory_report). Collective until the engine is
        sealed."""
        self.seal()
        return self.core.memory()

    def plan(self, as_json: bool = False) -> str | dict[str, Any]:
        """Returns the plan of this rank as a table, or as the object that its JSON describes. Collective until the engine is
        sealed."""
        self.seal()
        return self.core.plan(as_json)

    @collective("engine.fingerprint()")
    def fingerprint(self) -> int:
        """Returns the fingerprint (64 bits) of all master weights, which is the same on every layout. Collective, blocking."""
        self.seal()
        return self.core.fingerprint()

    @property
    def rank(self) -> int:
        """The number of this rank. DeepSpeed calls it global_rank."""
        return self.world.rank

    global_rank = rank  # as DeepSpeed calls it

    @property
    def local_rank(self) -> int:
        """The number of this rank among the ranks of its host."""
        return self.world.local_rank

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.world.size

    # -------------------------------------------------------------- weights --

    def state_dict(self) -> weights.StateDict:
        """Returns a mapping of names to exact fp32 weights, each gathered when it is read. Collective.

        Every rank reads the same names in the same order. The tensors are on the CPU and belong to the caller.
        """
        self.seal()
        return weights.StateDict(self)

    @collective("engine.load_state_dict()")
    def load_state_dict(self, values: Mapping[str, torch.Tensor], strict: bool = True) -> tuple[list[str], list[str]]:
        """Writes weights by name, the same on every rank. Returns the missing and the unexpected names. Collective, blocking.

        ValueError: `strict` is True, and names are missing or unexpected; nothing is written then.
        """
        self.seal()
        return weights.load_state_dict(self.core, self.module, self.division, values, strict)

    @collective("engine.save_pretrained()")
    def save_pretrained(self, folder: str | os.PathLike[str], dtype: torch.dtype = torch.float32,
                        max_file_bytes: int = 5_000_000_000) -> None:
        """Writes the weights as safetensors with the model's names, and config.json if the model has one. Collective, blocking.

        `dtype` is torch.float32, bfloat16 or float16. `max_file_bytes` is the most data in one file; more become several files
        with an index, as transformers writes them. Rank 0 writes.
        """
        self.seal()
        weights.save_pretrained(self, folder, dtype, max_file_bytes)

    @collective("engine.save_checkpoint()")
    def save_checkpoint(self, save_dir: str | os.PathLike[str], tag: str | None = None,
                        client_state: Mapping[str, Any] | None = None, **options: Any) -> bool:
        """Saves weights, optimizer, counters, buffers and schedulers to save_dir/tag, to continue from later. Collective,
        blocking.

        `tag` None: "step-" and the number of updates. `client_state` is kept as JSON. `options` are those of sherd_save_params
        (is_async, keep_last). Returns True. StateError: a window is open. InputOutputError: the folder or the drive.
        """
        self.seal()
        weights.save_checkpoint(self, save_dir, None if tag is None else str(tag), client_state, **options)
        return True

    @collective("engine.load_checkpoint()")
    def load_checkpoint(self, load_dir: str | os.PathLike[str], tag: str | None = None, load_module_only: bool = False,
                        **options: Any) -> tuple[str | None, dict[str, Any]]:
        """Loads a checkpoint, to continue from it. Collective, blocking.

        The run that saved it may have had another world size, stage, tier or precision. `tag` None: the newest one. Returns the
        folder and the client state, or (None, {}) if there is no checkpoint. `load_module_only`: weights only; the optimizer
        begins anew. `options` are may_miss and may_be_extra, shell patterns of names. Before the first batch the call answers
        from the files, and the load itself is done at that batch. InvalidError: another model, or a damaged file.
        """
        return resume.load_checkpoint(self, load_dir, None if tag is None else str(tag), load_module_only, options)

    def evaluating(self, keep_units: int | None = None) -> contextlib.AbstractContextManager[None]:
        """Begins an evaluation of many passes without gradients, for the body of a `with` statement. Collective.

        At stage 3 the first `keep_units` units stay gathered between the passes; None: as many as sherd.eval_keep_units says.
        """
        return generate.evaluating(self, keep_units)

    @collective("engine.generate()")
    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Calls generate() of a transformers model and returns what it returns. Collective.

        Ranks may have prompts of different lengths: a rank whose text has ended takes part until all have ended.
        """
        return generate.generate(self, *args, **kwargs)

    # ---------------------------------------------------------- as a module --

    def train(self, mode: bool = True) -> "Engine":
        """Sets the training mode of the model, and returns the engine."""
        self.module.train(mode)
        return self

    def eval(self) -> "Engine":
        """Sets the evaluation mode of the model, and returns the engine."""
        return self.train(False)

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("sherd.torch.initialize() gives one object, the engine, not a tuple as DeepSpeed does: engine.optimizer and "
                        "engine.lr_scheduler are attributes of it")

    def __getattr__(self, name: str) -> Any:
        """Attributes that the engine does not have come from the model, such as parameters() and config."""
        if name.startswith("_") or "module" not in vars(self):
            raise AttributeError(f"{type(self).__name__} has no attribute {name}")
        return getattr(self.module, name)

    # ----------------------------------------------------------------- end --

    def destroy(self) -> None:
        """Frees all memory of the engine. The parameters of the model then show NaN. Local; may be called twice."""
        if self.is_sealed and "hooks" in vars(self):
            gathered.unmark(self)
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
    """A batch as the arguments of a call: a dict becomes keyword arguments, a tuple arguments, anything else the only argument."""
    if isinstance(example, Mapping):
        return (), dict(example)
    return (tuple(example), {}) if isinstance(example, tuple) else ((example,), {})
