"""The engine of a training script: initialize(), and the class Engine of the object that it returns."""
from __future__ import annotations

import contextlib
import difflib
import inspect
import math
import os
import sys
from typing import Any, Iterator, Mapping, Sequence

import torch
from torch import nn

from sherd._library import library
from sherd.config import Config, ConfigSource
from sherd.engine import BACKWARD, FORWARD, Engine as Core, Report
from sherd.errors import InvalidError, NotSupportedError, SherdError, StateError
from sherd.torch import (activations as activations_of, buffers, compiled, fill, first, gathered, generate, leftovers, optim, resident, resume,
                         save, tensors, weights)
from sherd.torch.guard import Refusals
from sherd.torch.hooks import TRANSFORMS, Hooks, current_task, tensors_in, transform
from sherd.torch.queued import Queued
from sherd.torch.say import collective, unlogged, warn
from sherd.torch.trace import Order, order_of
from sherd.torch.units import Division, Policy, divide, keep_fp32, matches
from sherd.world import World

KNOWN = ("is_boundary", "has_overflow", "micro_step", "skipped_steps", "grad_norm", "grad_sumsq", "lr", "loss_scale")  # before the update
Example = tuple[tuple[Any, ...], dict[str, Any]]  # the positional and the keyword arguments of the model's forward


def initialize(model: nn.Module, config: ConfigSource | None = None, optimizer: Any = None, lr_scheduler: Any = None,
               model_parameters: Any = None, world: World | None = None, config_params: ConfigSource | None = None,
               **options: Any) -> "Engine":
    """Makes the engine that trains `model` as `config` says. Collective, blocking.

    The stages are those of ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054); docs/pytorch.md is the user's page. The model stays
    the caller's object. Its parameters become the engine's memory when the engine is sealed: here where an `example` is given, else
    at the first batch, which is the first forward of the engine or of the model.

    model: a torch.nn.Module, which torch.compile may have wrapped. It may be on the meta device.
    config: the path of a JSON file with DeepSpeed's keys, or a dict with the same keys (docs/configuration.md).
    optimizer: a torch optimizer, whose type, groups and values are read, or a list of them, each of which updates its own
        parameters ([Muon, AdamW]). Without one, `config` says what the optimizer is.
    lr_scheduler: a torch scheduler over that optimizer, or a function that makes one of an optimizer; the engine steps it. For
        several optimizers it is a list with one for each (None for those that keep their rates), or such a function.
    model_parameters: parameter groups, in the form in which torch's optimizers take them. It is read only without `optimizer`;
        without both there is one group with all trainable parameters.
    world: the ranks that train the model. By default it is the launcher's (torchrun, mpirun, srun), else one rank alone.
    config_params: DeepSpeed's old name of `config`.
    options: see Engine.

    Raises TypeError (the model, an optimizer or a scheduler is of a wrong type, an option that there is not), ValueError (parameters
    that the engine cannot have, groups that do not fit the model), FileNotFoundError (`weights`), InvalidError (the configuration),
    NotSupportedError (an optimizer that sherd does not have), StateError (another engine trains the model), OutOfMemoryError (with
    `example`).
    """
    options_check(options)
    if config is not None and config_params is not None:
        raise TypeError("config= and config_params= are two names of one argument: give config= alone")
    config = config if config_params is None else config_params
    return Engine(model, config, optimizer, lr_scheduler, model_parameters, world or World.from_env(), **options)


def options_check(given: Mapping[str, Any]) -> None:
    """Raises TypeError, with the nearest name, for an option that Engine does not have."""
    of_engine = [one.name for one in inspect.signature(Engine).parameters.values() if one.kind is one.KEYWORD_ONLY]
    for name in given:
        if name not in of_engine:
            near = difflib.get_close_matches(name, of_engine, 1)
            raise TypeError(f"sherd.torch.initialize() has no option {name}{f': is {near[0]} meant?' if near else ''}; besides its arguments it "
                            f"has {', '.join(of_engine)}")


def arguments_check(model: Any, weights: Any, **patterns: Any) -> None:
    """Raises TypeError, StateError or FileNotFoundError for arguments that would fail later, far from their cause.

    Weights, for example, are read at the first batch.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"the model is a torch.nn.Module, not {type(model).__name__}")
    unowned_check(model)
    if weights is not None and not os.path.exists(weights):
        raise FileNotFoundError(f"weights={os.fspath(weights)!r} is not there: a safetensors file, a folder of them or their index")
    for name, given in patterns.items():
        if isinstance(given, str) or given and weights is None:
            raise TypeError(f"{name} is a list of patterns of names for weights=, not {given!r}" + (" alone" if weights is None else ""))


def unowned_check(model: nn.Module, engine: "Engine | None" = None) -> None:
    """Raises StateError where another engine than this one has one of the model's parameters."""
    if any(gathered.owner_of(param) not in (None, engine) for param in model.parameters()):
        raise StateError(f"the {type(model).__name__} is trained by another sherd engine already, which has its memory: make the model "
                         f"anew, and its weights by engine.save_pretrained() and initialize(..., weights=)")


def freeze(division: Division) -> None:
    """Freezes all parameters, as an engine for inference has them: there is no memory for gradients, and autograd makes no graph."""
    for param in division.params:
        param.is_frozen = True
        param.tensor.requires_grad_(False)


def transforms_check() -> None:
    """Raises NotSupportedError inside of a transform of torch.func, where no engine can be sealed."""
    given = transform()
    if given is not None:
        name = TRANSFORMS.get(given, ("a transform of torch.func", ""))[0]
        raise NotSupportedError(f"the engine is not sealed yet, and the first batch comes through {name}, in which a model cannot be traced: "
                                f"give initialize(..., example=batch), or call the engine once without it")


@contextlib.contextmanager
def as_divided(division: Division) -> Iterator[None]:
    """A context in which parameters require a gradient as they did at initialize(), whatever the script has for its first batch."""
    kept = [(param, param.tensor.requires_grad) for param in division.params]
    try:
        for param in division.params:
            param.tensor.requires_grad_(not param.is_frozen)
        yield
    finally:
        for param, requires_grad in kept:
            param.tensor.requires_grad_(requires_grad)


def warn_of_types(division: Division, settings: Config, dtype: torch.dtype) -> None:
    """Warns of a model in 16 bits where the configuration chooses another type and does not mention the model's type.

    The configuration wins.
    """
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
    """A model whose parameters, gradients and optimizer state are the engine's. It is called like the model.

    initialize() makes it. One thread at a time drives it. Until it is sealed (`seal`), the model keeps its own parameters.
    Beside the errors that a method names, any collective method may raise PeerLostError and DeviceError. An attribute that the
    engine does not have is looked up in the module.

    Options:
        example: a batch: the model's only argument, a tuple of arguments or a dict of keyword arguments. With it the order of the
            units is found and memory is taken at once; without it, at the first batch. Only shapes, types and strides are used.
        units: the modules whose parameters are gathered together; sherd.torch.divide describes the forms.
        init: a function of a module that gives the module's own parameters values, for models on the meta device.
        same_on_all: True: every rank's model has the same values already. False: the values of rank 0 go to all ranks.
        backward_uses: "any": a step may go through the model as often as it likes (several losses, several forwards before a
            step), and ranks may leave out different modules where gathers do not wait for all ranks. Gradients are then whole until
            the step. None: how often backward comes is known from the trace, where there is one.
        retain_grads: gradients stay in `.grad` until the step: this rank's, of this micro-batch, scaled.
        fp32: modules, in the forms of `units`, whose parameters are fp32 where the engine computes in bf16 or fp16.
        weights: a safetensors file, a folder or an index with the weights under the model's names; each rank reads its part.
        may_miss: patterns of names (fnmatch) of parameters and buffers that the file of `weights` may lack. These have the values of
            the model, or those of `init`.
        may_be_extra: patterns of the file's names that the model may lack.
        broadcast_buffers: True: the buffers of rank 0, such as statistics of BatchNorm, reach all ranks at each boundary. False: they do
            so only when the engine is sealed. None: True, but with `same_on_all` False.
        own_buffers: patterns of names of buffers that each rank has for itself, from the beginning on.
        activations: which units have their activations in the engine's memory (docs/pytorch.md, "Activations"): patterns (fnmatch) of
            their names, or a dict from patterns to "none", "cpu" or "nvme", of which the first that matches counts. None: all of them where
            sherd.activations.device is not "none", else none of them.

    Attributes: `module` (the model), `world`, `core` (the sherd.Engine below), `division` (units and scopes), `device`, `order`
    (that was found), `report` (of the last step) and `boundary` (the report of the last boundary); the last three are None
    until there is one.
    """

    def __init__(self, model: nn.Module, config: ConfigSource | None, optimizer: Any, lr_scheduler: Any, model_parameters: Any,
                 world: World, *, example: Any = None, units: Policy = None, init: fill.Init | None = None,
                 same_on_all: bool = False,
                 backward_uses: str | None = None, retain_grads: bool = False, fp32: Policy = None,
                 weights: str | os.PathLike[str] | None = None, may_miss: Sequence[str] = (),
                 may_be_extra: Sequence[str] = (), broadcast_buffers: bool | None = None,
                 own_buffers: Sequence[str] = (), activations: activations_of.Choice = None) -> None:
        arguments_check(model, weights, may_miss=may_miss, may_be_extra=may_be_extra)
        buffers.options_check(broadcast_buffers, own_buffers)
        activations_of.choice_check(activations)
        self.module, self.world = getattr(model, "_orig_mod", model), world  # torch.compile wraps the module
        self._called = model
        model = self.module
        self.division = divide(model, units)
        keep_fp32(model, self.division, fp32)
        with Config(config) as settings:
            for text in settings.warnings if world.rank == 0 else ():
                warn(text)
            self._opens_windows = bool(settings.resolved()["sherd.open_windows"]["value"])
            self._skips_unused = settings.resolved()["sherd.unused_units"]["value"] == "skip"
            self._offloads = settings.resolved()["zero_optimization.offload_optimizer.device"]["value"] != "none"
            self._saves = activations is not None or settings.resolved()["sherd.activations.device"]["value"] != "none"
            self._activations = activations
            self.rates = optim.read(settings, self.division, optimizer, model_parameters, lr_scheduler)
            self.core = Core(world, settings)
            if optim.is_inference(settings):
                freeze(self.division)
                self._saves = False
            self._groups = optim.declare(self.rates.groups, self.core.add_group)  # by the ids of their parameters
            if world.rank == 0:
                warn_of_types(self.division, settings, tensors.compute_dtype(self.core))
        self.device = tensors.device_of(self.core.device)
        self._init, self._same_on_all, self._weights = init, same_on_all, weights
        self._may_miss, self._may_be_extra = list(may_miss), list(may_be_extra)
        self._uses, self._retains = backward_uses, retain_grads
        self.own_buffers = list(own_buffers)
        self._shared = buffers.Shared(world, self.module, own_buffers)
        self._shares_buffers = not same_on_all if broadcast_buffers is None else broadcast_buffers
        self.order: Order | None = None
        self.waiting: resume.Waiting | None = None
        self.opening: generate.Opening | None = None
        self._ended = ""  # why there is no forward any more; "" while there is
        self._is_failed = self._in_backward = self._has_warned = self._has_warned_of_schedulers = False
        self._has_warned_of_backwards = self._has_warned_of_ways = False
        self._micro = 0
        self._backwards = 0  # since the last step
        self._is_any = False  # backward may come to each unit as often as it likes, on each rank
        self._is_closing = False  # the next step ends the window
        self._params = {id(param.tensor) for param in self.division.params}
        optim.clear_by(self, self.rates.optimizers)
        self.watch = optim.Watch(self)
        self.first = first.Call(self)
        self._queued: Queued | None = None  # of the last boundary, until a wait for its update
        self.prepared: Report | None = None  # of the step for which apply_step() has not come yet
        self.report: Report | None = None  # of the last step
        self.boundary: Report | None = None  # of the last boundary
        if example is not None:
            self.seal(as_call(example))

    @property
    def optimizer(self) -> Any:
        """The torch optimizer that has the groups with their rates, which a scheduler or the script may change. Local.

        It makes no updates. It is a list where initialize() was given a list.
        """
        return self.rates.optimizer

    @property
    def lr_scheduler(self) -> Any:
        """The torch scheduler, which the engine steps with each update; None: there is none. Local.

        For a list of optimizers it is a list, unless one object drives them all.
        """
        return self.rates.scheduler

    # ------------------------------------------------------------ beginning --

    @property
    def is_sealed(self) -> bool:
        """Whether the engine has its plan and its memory. Local."""
        return self.core.is_sealed

    def seal(self, example: Example | None = None) -> None:
        """Finds the order of the units, makes the plan, takes all memory and takes the weights over. Collective, blocking.

        The first batch calls it, and so do calls that need the plan. It then runs the loads that load_checkpoint() has put off, and
        begins an evaluation that has waited. Where a load fails, the model stays guarded, and the next call runs it again.
        `example` is a batch as positional and keyword arguments; without it the order is that of registration, with a warning.
        Raises OutOfMemoryError (the message says what is missing), InvalidError, StateError, and what such a load raises.
        """
        self._ended_check()
        if self.is_sealed and self.waiting is None:
            return
        with torch.inference_mode(False):
            if not self.is_sealed:
                transforms_check()
                unowned_check(self.module, self)
                with contextlib.ExitStack() as around:
                    around.enter_context(as_divided(self.division))
                    around.enter_context(self.first.suspended(self))
                    if self.opening is not None:
                        around.enter_context(self.opening.suspended())
                    if self.waiting is not None:
                        around.enter_context(self.waiting.suspended(self))
                    self._seal(example)
            if self.waiting is not None:
                self.waiting.run(self)
                self.loaded()
        self.first.end()
        if self.opening is not None:
            self.opening.begin()

    def _seal(self, example: Example | None) -> None:
        buffers_dtype = tensors.buffers_dtype(self.division, tensors.compute_dtype(self.core))
        self.order = self._agreed_order(example)
        if not self.order.is_traced:
            warn(f"the order of the units is that of registration ({self.order.reason}); gradients are whole until the step")
        self._declare(self.order)
        if self.device.type == "cuda":
            self.core.set_stream(torch.cuda.current_stream(self.device).cuda_stream)
        self.core.seal()
        self._ended = "the engine could not take the weights of the model over, which are lost: make the model and the engine anew"
        if self._weights is not None:
            kept = [param for param in self.division.params if matches(param.name, self._may_miss)]
            fill.fill(self.core, self.module, kept, self._init, self._same_on_all)
            weights.import_weights(self.core, self.module, self.division, self._weights, self._may_miss, self._may_be_extra)
            fill.release_all(self.division)
        else:
            fill.fill(self.core, self.module, self.division.params, self._init, self._same_on_all)
        fill.make_buffers(self.module, self._init)
        if not self._same_on_all:
            self._shared.share()
        tensors.cast_buffers(self.module, buffers_dtype, self.device)
        self._take_over()
        self._ended = ""
        self.show_rates(keeps=True)

    def _agreed_order(self, example: Example | None) -> Order:
        """Returns the order that rank 0 finds, on all ranks, and notes in the division what the trace found. Collective."""
        text = b""
        if self.world.rank == 0:
            dtype = tensors.compute_dtype(self.core)
            with unlogged("torch._subclasses.fake_tensor"):  # a batch that does not fit fails in the forward, which says so
                measures = self._saves and self._uses != "any"
                text = order_of(self.module, self.division, example, dtype, self.device, measures, self._activations).to_json().encode()
        order = Order.from_json(self.world.share(text).decode())
        modules = dict(self.module.named_modules())
        for name, unit in order.strays:
            self.division.add_use(name, modules[name], unit)
        for scope in self.division.scopes:
            scope.is_late = scope.name in order.late
        return order

    def _declare(self, order: Order) -> None:
        """Declares units, parameters and passes to the engine."""
        info = self.core.info
        self._is_any = self._uses == "any" or not order.is_traced or info.stage < 2 and not info.is_deterministic and not order.activations
        uses = library().constants["SHERD_USES_ANY"] if self._is_any else 0
        for unit in self.division.units:
            retains = {"retain_grads": 1} if self._retains else {}
            number = self.core.add_unit(unit.name, backward_uses=uses, **retains)
            for param in unit.params:
                own = {"dtype": library().constants["SHERD_F32"]} if param.is_fp32 else {}
                param.number = self.core.add_param(number, param.name, tuple(param.tensor.shape), frozen=param.is_frozen,
                                                   group=self._groups.get(id(param.tensor), 0), **own)
        for which, listed in ((FORWARD, order.forward), (BACKWARD, order.backward)):
            for number, held in listed:
                self.core.add_pass(which, number, held)
        activations_of.declare(self.core, self.division, order.activations, self._activations)
        if self._saves and not order.activations and self.rank == 0:
            why = activations_of.NEEDS_USES if self._uses == "any" else order.unsaved if order.is_traced else activations_of.NEEDS_TRACE
            warn(f"no unit has an activation, and what autograd saves stays in torch's memory: {why}")

    def _take_over(self) -> None:
        """Makes the model's parameters show the engine's memory, and sets all hooks and guards of the model."""
        self.driver = tensors.Driver(self.core, self.division, self._retains)
        if self._is_any and not self.driver.sleeps and not self._skips_unused:
            self.hooks: Hooks | resident.Hooks = resident.Hooks(self.module, self.division, self.driver)
        else:
            self.hooks = Hooks(self.module, self.division, self.driver)
        if self.order.activations:
            self.hooks.saver = activations_of.Mover(self.module, self.driver, self.division, self.order.activations)
        self.hooks.before_forward, self.hooks.before_backward = self._before_forward, self._before_backward
        self.hooks.attach()
        compiled.mind_hooks()
        self.refusals = Refusals(self.module, self.division, self.driver)
        self.refusals.attach()
        self.buffers = save.Buffers(self.module)
        gathered.mark(self)

    def loaded(self) -> None:
        """Ends the wait for a checkpoint, which has been loaded: the guards of the model are removed. Local."""
        if self.waiting is not None:
            self.waiting.end()
        self.waiting = None

    def _ended_check(self) -> None:
        """Raises StateError after destroy(), and where the seal failed after the engine had begun to take the weights."""
        if self._ended:
            raise StateError(self._ended)

    def _loaded_check(self) -> None:
        """Raises StateError while a load waits or has failed: the values of the engine are not those of the checkpoint.

        Raises it too where there is no forward any more.
        """
        self._ended_check()
        if self.waiting is not None:
            raise StateError(resume.WAITS)

    def has_param(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is one of the parameters that the engine has. Local."""
        return id(tensor) in self._params

    # ------------------------------------------------------------- training --

    @collective("engine(...)")
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the module's forward and returns its output. Collective, blocking. Under torch.no_grad() it is an evaluation.

        The first call seals the engine (`seal`). After an exception in a backward, the call first drops the window, with a warning.
        Raises what the module raises, and StateError where a parameter was changed outside of the engine, and after destroy().
        """
        self._ended_check()
        if not self.is_sealed or self.waiting is not None:
            self.seal((args, kwargs))
        compiled.mind_hooks()
        if current_task() < 0:  # else a backward computes it again, as with checkpoint(engine, x)
            self._before_forward()  # Ctrl-C may have ended a forward in its middle
        try:
            output = self._called(*args, **kwargs)
        except RuntimeError as error:
            refused = self.driver.refusal(error)  # of a backward inside of the forward
            if refused is not None:
                raise refused from error
            raise
        if any(map(leftovers.is_left, tensors_in(output))):
            raise StateError(f"the output of the module has no memory: {leftovers.ADVICE}")
        return output

    @collective("engine.backward()")
    def backward(self, loss: torch.Tensor, retain_graph: bool = False) -> torch.Tensor:
        """Runs the backward of `loss`, the mean loss of this micro-batch on this rank: a scalar. Returns it. Collective, blocking.

        The engine averages over ranks and micro-batches, and scales the loss where fp16 is on. `retain_graph` is torch's. After an
        exception the window is lost. Raises StateError (a gradient came where its unit is not acquired; a checkpoint is not loaded
        yet), NotSupportedError.
        """
        self._loaded_check()
        scale = self.core.loss_scale
        self._in_backward = True
        self._backwards += 1
        try:
            with self._differences_told():
                scaled = loss if scale == 1 else loss * scale
                if self.is_sealed:
                    self.hooks.open_backward(scaled)
                scaled.backward(retain_graph=retain_graph)
        except BaseException as error:
            self._is_failed = True
            refused = self.driver.refusal(error) if self.is_sealed else None
            if refused is not None:
                raise refused from error
            raise
        finally:
            self._in_backward = False
        return loss

    def weigh_micro_batch(self, weight: int) -> None:
        """Gives the weight of this rank's micro-batch, such as its number of tokens: at most sherd.most_weight, which must be set.

        `loss` is still the mean over the micro-batch. The mean of the window is the sum of weight times gradient over all ranks, divided by the
        sum of weights. Call it after the forward, before the backward. Local. Raises StateError (the key is not set, the engine is not sealed,
        or the backward has begun), InvalidError.
        """
        self._loaded_check()
        self.core.weigh_micro_batch(weight)

    @collective("engine.skip_micro_batch()")
    def skip_micro_batch(self) -> None:
        """Takes part in a micro-batch for which this rank has no data, in place of forward and backward; step() follows, as on all ranks.

        The mean of the window is over the micro-batches that had data. The other ranks make their forward and backward meanwhile, so it is
        collective, and blocking. Raises StateError (this micro-batch has begun; no rank had data in the window, at the step).
        """
        self._ended_check()
        if not self.is_sealed or self.waiting is not None:
            self.seal()
        self._before_forward()
        with self._differences_told():
            self.core.skip_micro_batch()
        self._backwards += 1  # as one of nothing

    @collective("engine.step()")
    def step(self) -> Report:
        """Ends a micro-batch; call it once for each, after its backward. Returns the report (sherd_step_report).

        At the boundary it updates the parameters, by the rates of `optimizer`, and steps `lr_scheduler`. A gradient with Inf or NaN
        makes no update; the report has has_overflow 1. Where it can (`_queues`), the call returns before the update is over: calls that need
        the new values wait for them, and a number of the report that is not known yet waits, collectively, when it is read. Collective,
        blocking. Raises StateError (there was no forward yet, or the backward failed; a checkpoint is not loaded yet; a number of a group
        was changed that does not change in training), InputOutputError, NumericError. It also raises StateError, and the window is lost, where a gradient was written or replaced after the backward,
        and where a parameter came into the model later. What fails in an update that was queued is raised by the call that waits for it.
        """
        numbers = self._end_micro_batch("engine.step()")
        with self._differences_told():
            if numbers is None and not self._queues():
                return self._after(self._waited(self.core.step()), None)
            report = self.core.prepare()
        if report.is_boundary:
            report = self._apply(report, numbers)
        return self._after(report, numbers)

    @collective("engine.wait()")
    def wait(self) -> Report | None:
        """Waits for the update that the last step() has queued. Returns the complete report of the last boundary; None: there was none.

        Collective and blocking while an update is queued, on one rank alone local. Raises the failure of the update: InputOutputError.
        """
        if self._queued is not None and self._queued.is_pending:
            self._queued.complete()
        self._queued = None
        return self.boundary

    @collective("engine.prepare_step()")
    def prepare_step(self) -> Report:
        """Does the first half of step(): all that comes before the update. Returns the report. Collective, blocking.

        Its `is_boundary` is 0 inside a window; nothing follows then. At the boundary it has `grad_norm`, the norm of the mean gradient
        before clipping, and `has_overflow`; apply_step() or discard() has to follow. Raises what step() raises.
        """
        numbers = self._end_micro_batch("engine.prepare_step()")
        with self._differences_told():
            report = self.core.prepare()
        if not report.is_boundary:
            return self._after(report, numbers)
        self.prepared = report
        return report

    @collective("engine.apply_step()")
    def apply_step(self, clip_coefficient: float | None = None) -> Report:
        """Does the second half of step(), the update. Returns the report. Collective, blocking.

        `clip_coefficient` is what the mean gradient is multiplied by, in place of the coefficient of `gradient_clipping`; 1 leaves it
        as it is. It is the same on all ranks. The rates are those of now. After an overflow, there is no update. Raises StateError
        (no step is prepared; a number of a group was changed that does not change in training), ValueError (a coefficient that is negative or
        not finite), InvalidError (the ranks gave different ones; the step stays prepared), InputOutputError.
        """
        if self.prepared is None:
            raise StateError("engine.apply_step() must follow an engine.prepare_step() whose report has is_boundary 1, and no step is prepared")
        if clip_coefficient is not None and not 0 <= clip_coefficient < math.inf:
            raise ValueError(f"clip_coefficient={clip_coefficient} is what the gradient is multiplied by: give a finite number of 0 or more")
        numbers = self.rates.now()
        values = {} if clip_coefficient is None else {"clip_coefficient": float(clip_coefficient)}
        try:
            report = self._apply(self.prepared, numbers, **values)
        except (InvalidError, StateError):
            raise  # nothing was written: it stays prepared
        except BaseException:
            self.prepared, self._micro = None, 0  # the window is lost
            raise
        return self._after(report, numbers)

    def _end_micro_batch(self, call: str) -> dict[str, list[float]] | None:
        """Does what comes before each step: checks it, and ends the micro-batch. Returns what was set for the groups (optim.Rates.now)."""
        self._loaded_check()
        if self._is_failed or self.is_sealed and not self.hooks.is_idle:
            raise StateError("the backward of this micro-batch failed, or its gradients were refused, so there is nothing to step by: the "
                             "next forward drops the window, or engine.discard() does on all ranks")
        numbers = self.rates.now()
        if not self.is_sealed:
            raise StateError(f"{call} must follow the forward and the backward of a micro-batch, and there was none yet: call "
                             f"engine(batch) and engine.backward(loss) first")
        self._warn_of_backwards()
        self._take_gradients()
        is_boundary = self.is_gradient_accumulation_boundary()
        self._backwards = 0
        self._is_closing = False
        if is_boundary:
            self.wait()  # the report of the boundary before would become that of this one
        return numbers

    def _after(self, report: Report, numbers: dict[str, list[float]] | None) -> Report:
        """Does what comes after each step. Returns its report."""
        self.prepared = None
        self._micro = 0 if report.is_boundary else self._micro + 1
        self.report = report
        if report.is_boundary:
            self.boundary = report
            if self._shares_buffers:
                self._shared.share()
            self.watch.after_update()
            if report.was_updated:
                self._warn_of_schedulers()
                self.rates.after_update(numbers)
                self.show_rates(keeps=False)
            elif report.has_overflow:
                self._warn_of_overflow()
        return report

    @contextlib.contextmanager
    def _differences_told(self) -> Iterator[None]:
        """A context that adds to the error of ranks that disagree how ranks may run different modules."""
        try:
            yield
        except (InvalidError, StateError) as error:
            if "disagree" in str(error) and not self._is_any:
                error.args = (f"{error}. If the ranks run different modules (LayerDrop, routing that differs by rank), give "
                              f"sherd.torch.initialize(..., backward_uses=\"any\"); {tensors.AS_OPTION}",)
            raise

    def show_rates(self, keeps: bool) -> None:
        """Makes `optimizer` show the rates of the configuration's schedule for the next update (optim.Rates.show). Local."""
        step = self.global_steps + 1
        self.rates.show(lambda group: self.core.group_lr(group, step), self.is_sealed, keeps)

    def _take_gradients(self) -> None:
        """Checks the gradients and ends the micro-batch. Raises StateError, and the window is lost, where they are not to be used."""
        try:
            if self.is_gradient_accumulation_boundary():
                self._latecomers_check()
            self.driver.end_micro_batch()
            self.hooks.end_activations()
        except StateError:
            self._is_failed = True  # another backward would add to the gradients that are refused
            raise

    def _latecomers_check(self) -> None:
        """Raises StateError where a parameter that the engine does not have got a gradient: nothing would update it."""
        for module in self.module.modules():
            for tensor in module._parameters.values():
                if tensor is None or self.has_param(tensor) or tensor.grad is None:
                    continue
                name = next(name for name, one in self.module.named_parameters() if one is tensor)
                raise StateError(f"parameter {name} came into the model after sherd.torch.initialize, and nothing updates it: change the "
                                 f"model before (resize_token_embeddings, new heads, adapters)")

    def _warn_of_schedulers(self) -> None:
        """Warns once where the script steps a scheduler that the engine steps too."""
        if self.rank == 0 and not self._has_warned_of_schedulers and self.rates.are_stepped_twice():
            self._has_warned_of_schedulers = True
            warn("the lr_scheduler that initialize() was given is stepped by engine.step() with each update and by the script too, so "
                 "it counts twice: leave out scheduler.step(), or do not give the scheduler to initialize()")

    def _warn_of_backwards(self) -> None:
        """Warns once of a loop that goes through all micro-batches of a window before it calls step(), as loops of plain torch do."""
        accumulation = self.core.info.accumulation
        if self.rank == 0 and not self._has_warned_of_backwards and self._backwards == accumulation > 1:
            self._has_warned_of_backwards = True
            warn(f"there were {self._backwards} backward passes before this engine.step(), and gradient_accumulation_steps is {accumulation}: "
                 f"step() ends one micro-batch, so these are one of {accumulation}, and their gradients are added. If each was a micro-batch, "
                 f"call engine.step() after each of them")

    def _warn_of_overflow(self) -> None:
        """Warns once of a skipped update, except with fp16, where the loss scale is lowered.

        Without the warning, a run in which every gradient is NaN looks like one that does not learn.
        """
        if self._has_warned or self.rank != 0 or tensors.compute_dtype(self.core) == torch.float16:
            return
        self._has_warned = True
        at_3 = "; at stage 3, a loss that reads parameters outside of their modules is NaN" if self.core.info.stage == 3 else ""
        warn(f"the gradient of update {self.global_steps + 1} has Inf or NaN in it, so the update was skipped{at_3}. "
             f"engine.was_step_applied() reports it for later steps, which do not warn")

    def _waited(self, report: Report) -> Report:
        """Returns the complete report of a step. Behind a boundary, scripts read parameters that are whole on this rank, which have their
        new values only then."""
        return self.core.wait() if report.is_boundary else report

    def _queues(self) -> bool:
        """Whether a step returns before its update is over. Local.

        Below stage 3 it does not, since scripts read parameters at any time, by operations of torch that wait for nothing.
        """
        return self.driver.sleeps and (self._offloads or self.device.type == "cuda")

    def _apply(self, prepared: Report, numbers: dict[str, list[float]] | None, **values: float) -> Report:
        """Makes the update of a step whose first half has that report, or queues it. Returns the report of the step."""
        self.core.apply(**(numbers or {}), **values, is_queued=self._queues())
        step = self.core.info.step
        if not self._queues() or step == prepared.step:
            return self.core.wait()
        known = {name: getattr(prepared, name) for name in KNOWN}
        rates = (numbers or {}).get("group_lr", [])
        first = min(self._groups.get(id(param.tensor), 0) for param in self.division.params if not param.is_frozen)
        if first < len(rates) and not math.isnan(rates[first]):
            known["lr"] = rates[first]
        self._queued = Queued(self.core, was_updated=1, step=step, **known)
        return self._queued

    def close_window(self) -> None:
        """Makes the next step() or prepare_step() a boundary, even if the window is short; the mean is then over the micro-batches that it has.

        The next step may end a micro-batch, or follow the previous step without another forward. Local; call it on all ranks at the same time.
        Raises StateError before the engine has computed. A window without a micro-batch cannot be closed: the step raises StateError.
        """
        self.core.close_window()
        self._is_closing = True

    @collective("engine.discard()")
    def discard(self) -> None:
        """Drops the window: its gradients are lost, and all units are released. Call it after an exception. Collective, blocking.

        It returns when all ranks have come. Raises StateError before the engine is sealed, and after an update that failed.
        """
        self._drop()

    def _drop(self) -> None:
        """Does what discard() says, for calls that have names of their own in messages."""
        self.core.discard()
        self.hooks.forget()
        self.driver.forget()
        self._is_failed = self._is_closing = False
        self.prepared = None
        self._micro = self._backwards = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients of backward passes since the last step(), as discard() does, which is collective and blocking.

        Does nothing, locally, where there was none: the engine begins each window with gradients of zero. `optimizer.zero_grad()` is
        the same. Raises StateError where the window has other micro-batches, whose gradients would be lost too.
        """
        self.clear("engine.zero_grad()")

    def clear(self, call: str) -> None:
        """Does what zero_grad() says. `call` is what the script has called, for messages."""
        if not self._backwards:
            return
        if self._micro:
            raise StateError(f"{call} after a backward would drop the {self._micro} earlier micro-batches of this window too, because "
                             f"their gradients are in one sum: call it at the beginning of a window, leave it out, or drop the window "
                             f"with engine.discard()")
        collective(call)(Engine._drop)(self)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """A context that does nothing, for scripts that use it. The configuration's accumulation decides when ranks exchange."""
        yield

    def _before_forward(self) -> None:
        """Drops the window, with a warning, where a forward or a backward did not end, or a step refused its gradients.

        Raises StateError after prepare_step(), where the update has to come first.
        """
        if self.prepared is not None:
            raise StateError("a step is prepared, by engine.prepare_step() or clip_grad_norm_(), and a forward comes before its update: call "
                             "engine.apply_step() or optimizer.step() first, or drop the gradients with engine.discard() or "
                             "optimizer.zero_grad()")
        if self._is_failed or not self.hooks.is_idle:
            warn("a forward or a backward did not end, or a step refused its gradients; the gradients of this window are dropped")
            self.discard()

    def _before_backward(self) -> None:
        """Counts a loss.backward() of the script. Raises StateError with fp16, where only engine.backward() scales the loss.

        Warns once where a gradient may reach a module by a way that only engine.backward() finds.
        """
        if not self._in_backward and not self.hooks.is_in_backward:  # else it is a part of another one (checkpointing)
            if self.core.loss_scale != 1:
                raise StateError("with fp16 the loss has to be scaled by the engine that it goes through: call engine.backward(loss) of this "
                                 "engine in place of loss.backward(). A loss through two engines has no scale that fits both: train both "
                                 "models by one engine, or by bf16, or cut the loss between them (\"One loss through two engines\" in "
                                 "docs/pytorch.md)")
            self._backwards += 1
            self._warn_of_ways()
            self.hooks.open_backward(None)
        self.driver.backwards = self._backwards

    def _warn_of_ways(self) -> None:
        """Warns once where a loss.backward() of the script may read parameters that are not there: only engine.backward() knows the loss,
        from which it finds the ways into modules. Often these tensors are of no use to anybody, such as the last state of an LSTM."""
        if self.hooks.hiding is not None and not self._has_warned_of_ways and self.core.info.stage == 3:
            self._has_warned_of_ways = True
            warn(f"module {self.hooks.hiding} makes tensors that are no outputs of it. Where a loss is made of them, its gradient comes by "
                 f"another way than the outputs: call engine.backward(loss) in place of loss.backward()")

    # -------------------------------------------------------------- looking --

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether the step() of the present micro-batch is the last one of its window, which updates. Local.

        With sherd.open_windows it is so after close_window() alone.
        """
        return self._is_closing or not self._opens_windows and self._micro + 1 >= self.core.info.accumulation

    @property
    def has_window(self) -> bool:
        """Whether a window is open: a backward has made gradients that no update has used and no discard has dropped. Local."""
        return self._micro > 0 or self._backwards > 0 or self.prepared is not None

    @property
    def has_backward(self) -> bool:
        """Whether there was a backward since the last step() or prepare_step(), whose micro-batch is not over yet. Local."""
        return self._backwards > 0

    def get_global_grad_norm(self) -> float | None:
        """Returns the L2 norm of the mean gradient at the last boundary, before clipping; None before the first. Local."""
        return None if self.boundary is None else self.boundary.grad_norm

    def get_lr(self) -> list[float]:
        """Returns the learning rates of the groups, in the order of `optimizer.param_groups`. Local.

        A rate that the configuration's schedule gives is that of the last update; before the first update, it is that of the first.
        Before the first batch, such a rate is known only where the schedule does not list a number for each of several groups; else it is
        the group's.
        """
        step = max(self.global_steps, 1)
        return self.rates.lr(lambda group: self.core.group_lr(group, step), self.is_sealed)

    @property
    def loss_scale(self) -> float:
        """The factor by which backward() multiplies the loss; 1 unless fp16 is on. Local."""
        return self.core.loss_scale

    def _counter(self, name: str) -> int:
        """Returns a counter: the checkpoint's where a load waits for the first batch, else the engine's."""
        waiting = {} if self.waiting is None else self.waiting.counters()
        return waiting[name] if name in waiting else getattr(self.core.info, name)

    @property
    def global_steps(self) -> int:
        """The number of updates done; skipped ones are not counted. Local."""
        return self._counter("step")

    @property
    def micro_steps(self) -> int:
        """The number of micro-batches that each rank has seen. Local."""
        return self._counter("micro_step")

    @property
    def global_samples(self) -> int:
        """The number of samples that all ranks together have seen, in earlier runs too. Local."""
        return self._counter("samples")

    def was_step_applied(self) -> bool:
        """Whether the last step() updated the parameters. False inside a window and after an overflow. Local."""
        return self.report is not None and bool(self.report.was_updated)

    def zero_optimization_stage(self) -> int:
        """Returns the stage of ZeRO, 0 to 3. Local."""
        return self.core.info.stage

    def gradient_accumulation_steps(self) -> int:
        """Returns the number of micro-batches in a window. Local."""
        return self.core.info.accumulation

    def train_micro_batch_size_per_gpu(self) -> int:
        """Returns the samples of a rank's micro-batch, as configured. Local."""
        return self.core.info.micro_batch_size

    def train_batch_size(self) -> int:
        """Returns the samples of a step over all ranks, as configured. Local."""
        return self.core.info.train_batch_size

    def memory_report(self) -> Report:
        """Returns the bytes of this rank's memory by purpose, planned and held (sherd_memory_report).

        Collective where it has to seal the engine, else local.
        """
        self.seal()
        return self.core.memory()

    def plan(self, as_json: bool = False) -> str | dict[str, Any]:
        """Returns the plan of this rank: a table as text, or with `as_json` a dict. Collective where it has to seal, else local."""
        self.seal()
        return self.core.plan(as_json)

    @collective("engine.fingerprint()")
    def fingerprint(self) -> int:
        """Returns the fingerprint of all master weights, a number of 64 bits (docs/numerics.md). Collective, blocking."""
        self.seal()
        return self.core.fingerprint()

    @property
    def rank(self) -> int:
        """This rank's number in the world. Local."""
        return self.world.rank

    global_rank = rank  # DeepSpeed's name

    @property
    def local_rank(self) -> int:
        """This rank's number among the ranks of its host. Local."""
        return self.world.local_rank

    @property
    def world_size(self) -> int:
        """The number of ranks. Local."""
        return self.world.size

    # -------------------------------------------------------------- weights --

    def state_dict(self) -> weights.StateDict:
        """Returns the weights as a mapping from names to tensors, each of which is read when it is asked for.

        Parameters are fp32 and exact, in their shapes, on the CPU, in memory of the caller's own; buffers are copies in their own
        type. Reading an entry is collective and blocking: every rank asks for the same names in the same order, as
        `dict(engine.state_dict())` does. The call itself is collective where it has to seal the engine, else local, and raises
        StateError where a parameter came into the model later. Reading raises StateError while a forward or a backward is under way,
        and KeyError for a name that there is not.
        """
        self.seal()
        return weights.StateDict(self)

    @collective("engine.load_state_dict()")
    def load_state_dict(self, values: Mapping[str, torch.Tensor], strict: bool = True) -> tuple[list[str], list[str]]:
        """Writes weights by name, from tensors of the parameters' shapes. They must be the same on every rank.

        Returns the names that `values` lacks, and those that the model lacks; with `strict` either raises ValueError. Another shape
        raises it too. Nothing is written then. The values become the master weights. Collective, blocking, between steps. Raises
        ValueError, StateError.
        """
        self.seal()
        return weights.load_state_dict(self.core, self.module, self.division, values, strict)

    @collective("engine.save_pretrained()")
    def save_pretrained(self, folder: str | os.PathLike[str], dtype: torch.dtype = torch.float32,
                        max_file_bytes: int = 5_000_000_000) -> None:
        """Writes the weights to `folder` as safetensors under the model's names, as transformers reads them.

        `dtype` is torch.float32, bfloat16 or float16; `max_file_bytes` is the most data of one file. Buffers of a state_dict are
        written in their own types (rank 0's), and config.json where the model has one. Collective, blocking, between steps. Raises
        ValueError (`dtype`, or a buffer's type), InputOutputError, NumericError (a value is too large for `dtype`), StateError.
        """
        self.seal()
        weights.save_pretrained(self, folder, dtype, max_file_bytes)

    @collective("engine.save_checkpoint()")
    def save_checkpoint(self, save_dir: str | os.PathLike[str], tag: str | None = None,
                        client_state: Mapping[str, Any] | None = None, **options: Any) -> bool:
        """Saves everything that a later run needs to continue, as the checkpoint save_dir/tag. Returns True.

        docs/checkpoints.md describes checkpoints. `client_state` is rank 0's: None, numbers, text, lists, tuples and dicts of them,
        tensors and numpy's arrays, of any size; tensors come back on the CPU. It is never a pickle. Options are `is_async`,
        `keep_last`, `progress` and `may_be_in_window` of sherd.Engine.save. Collective, blocking, between steps, with the same arguments on every rank.
        Raises TypeError (something else is in `client_state`), and what sherd.Engine.save raises.
        """
        self.seal()
        self.wait()
        try:
            save.save_checkpoint(self, save_dir, None if tag is None else str(tag), client_state, **options)
        except StateError as error:
            if self._micro:
                raise StateError(f"{error}. In Python, engine.close_window() and engine.step() end a window early, and engine.discard() "
                                 f"drops it") from None
            raise
        return True

    @collective("engine.wait_saved()")
    def wait_saved(self) -> Report:
        """Waits until an asynchronous save is complete. Returns the report of the last save or load (sherd_checkpoint_report).

        Collective and blocking while a save runs. Raises the failure of the save, such as InputOutputError.
        """
        return self.core.wait_saved()

    @collective("engine.load_checkpoint()")
    def load_checkpoint(self, load_dir: str | os.PathLike[str], tag: str | None = None, load_module_only: bool = False,
                        **options: Any) -> tuple[str | None, dict[str, Any]]:
        """Loads a checkpoint to continue from it, whatever the number of ranks, stage and precision of the run that saved it.

        Returns the checkpoint's folder and the client state, or (None, {}), with a warning, where `load_dir` has no checkpoint. With
        `load_module_only` it loads weights and buffers alone. Options are `may_miss`, `may_be_extra` and `progress` of
        sherd.Engine.load. Before the first batch it returns at once, and the load itself comes with that batch, which then raises
        its failure. Collective, blocking, between steps. Raises what sherd.Engine.load raises, TypeError for other options.
        """
        with contextlib.suppress(SherdError):  # a load is a way out where an update has failed; its report says so
            self.wait()
        return resume.load_checkpoint(self, load_dir, None if tag is None else str(tag), load_module_only, options)

    def evaluating(self, keep_units: int | None = None) -> contextlib.AbstractContextManager[None]:
        """Returns a context for an evaluation in many passes without gradients: `with engine.evaluating():`.

        Inside, up to `keep_units` units (None: as many as sherd.eval_keep_units says) stay gathered between the passes; no step.
        Collective, blocking. Before the first batch, it begins with the first forward inside, of the engine or of the module, which is
        that batch. Raises InvalidError (more units than were planned), StateError; before the first batch, that forward does.
        """
        return generate.evaluating(self, keep_units)

    @collective("engine.generate()")
    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the generate() of the model, with these arguments, and returns its result. Collective, blocking.

        Where it is that of transformers, also of a member that the model wraps, ranks may generate texts of different lengths. Before
        the first batch, the tensors that it is given are that batch. Raises AttributeError where the model has no generate().
        """
        return generate.generate(self, *args, **kwargs)

    # ---------------------------------------------------------- as a module --

    def train(self, mode: bool = True) -> "Engine":
        """Sets the module's training mode, as torch's Module.train does. Returns the engine. Local."""
        self.module.train(mode)
        return self

    def eval(self) -> "Engine":
        """Sets the module's evaluation mode, as torch's Module.eval does. Returns the engine. Local."""
        return self.train(False)

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("sherd.torch.initialize() gives one object, the engine, not a tuple as DeepSpeed does: engine.optimizer and "
                        "engine.lr_scheduler are attributes of it")

    def __getattr__(self, name: str) -> Any:
        """Returns the module's attribute where the engine has none of that name, such as parameters() or config."""
        if name.startswith("_") or "module" not in vars(self):
            raise AttributeError(f"{type(self).__name__} has no attribute {name}; the model itself is engine.module")
        return getattr(self.module, name)

    # ----------------------------------------------------------------- end --

    @collective("engine.destroy()")
    def destroy(self) -> None:
        """Frees all memory of the engine, and takes the hooks off the model, whose parameters show NaN from then on.

        It first waits for an asynchronous save, except while an exception is handled, as sherd.Engine.destroy does, and, on one rank
        alone, for an update that was queued. The failure of either is raised after all memory is freed. Collective and blocking while a save runs; otherwise not, but with state on NVMe a rank
        waits for the others, for 10 seconds at most. May be called twice. Without this call the engine ends with the program, which
        drops an asynchronous save that runs, with a warning.
        """
        self.watch.end()
        self.first.end()
        if self.waiting is not None:
            gathered.unmark(self)
            self.loaded()
        if self.is_sealed and "hooks" in vars(self):
            gathered.unmark(self)
            self.hooks.detach()
            self.refusals.detach()
            for unit in self.driver.bound:
                for one in unit:
                    one.tensor.grad = None
                    one.rouse(tensors.asleep_like(one.awake))
        self._ended = "the engine is destroyed: make the model and the engine anew"
        try:
            if self.world.size == 1 and sys.exc_info()[0] is None:
                self.wait()
        finally:
            self.core.destroy()


def as_call(example: Any) -> Example:
    """Returns a batch as the arguments of a call: a dict has keyword arguments, a tuple positional ones, anything else is one."""
    if isinstance(example, Mapping):
        return (), dict(example)
    return (tuple(example), {}) if isinstance(example, tuple) else ((example,), {})
