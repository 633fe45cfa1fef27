"""deepspeed.runtime.lr_schedules: its schedules as objects. The engine computes the rates (docs/schedules.md)."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sherd.errors import NotSupportedError, StateError

if TYPE_CHECKING:
    from sherd.deepspeed.engine import DeepSpeedEngine

LR_SCHEDULE, LR_RANGE_TEST, ONE_CYCLE = "lr_schedule", "LRRangeTest", "OneCycle"
WARMUP_LR, WARMUP_DECAY_LR, WARMUP_COSINE_LR = "WarmupLR", "WarmupDecayLR", "WarmupCosineLR"
VALID_LR_SCHEDULES = [LR_RANGE_TEST, ONE_CYCLE, WARMUP_LR, WARMUP_DECAY_LR, WARMUP_COSINE_LR]
FOLLOWS = "the schedule follows the engine's counter of updates, which engine.load_checkpoint() loads"


class Schedule:
    """A schedule of the engine's. engine.step() goes on by one with each update; the rates are those of the optimizer's groups.

    initialize() returns it for the block "scheduler" of the configuration. A script may also make one of the classes below, with the
    arguments that DeepSpeed's has, and give it to initialize(); what it leaves out has the defaults of the configuration.
    """

    names: tuple[str, ...] = ()  # of the arguments after the optimizer

    def __init__(self, optimizer: Any = None, *values: Any, **named: Any) -> None:
        self.kind, self.optimizer = type(self).__name__, optimizer
        self.params = {**dict(zip(self.names, values)), **named}
        unknown = [name for name in self.params if name not in (*self.names, "last_batch_iteration")]
        if unknown or len(values) > len(self.names):
            raise TypeError(f"{self.kind}() has the arguments optimizer, {', '.join(self.names)}, and not {', '.join(unknown) or 'as many'}")
        if self.params.pop("last_batch_iteration", -1) != -1:
            raise NotSupportedError(f"{self.kind}(last_batch_iteration=): {FOLLOWS}")
        self.params = {name: value for name, value in self.params.items() if value is not None}
        self.engine: "DeepSpeedEngine | None" = None

    @classmethod
    def of(cls, engine: "DeepSpeedEngine", kind: str) -> "Schedule":
        """Returns the schedule of an engine whose configuration has one. Local."""
        made = Schedule(engine.optimizer)
        made.kind = kind
        made.engine = engine
        return made

    def get_lr(self) -> list[float]:
        """Returns the rates of the next update. Local."""
        if self.engine is None:
            raise StateError(f"{self.kind}.get_lr(): give the schedule to deepspeed.initialize(lr_scheduler=) first")
        return self.engine.get_lr()

    get_last_lr = get_lr

    @property
    def last_batch_iteration(self) -> int:
        """The index of the last update; -1 before the first. Local."""
        return -1 if self.engine is None else self.engine.engine.global_steps - 1

    def step(self, *_args: Any, **_kwargs: Any) -> None:
        """Raises StateError."""
        raise StateError(f"{self.kind}.step(): engine.step() steps the schedule with each update, so this would count twice: leave it out")

    def state_dict(self) -> dict[str, Any]:
        """Returns the index of the last update. Local."""
        return {"last_batch_iteration": self.last_batch_iteration}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Does nothing where that is the present index. Raises NotSupportedError for another one. Local."""
        if state.get("last_batch_iteration") != self.last_batch_iteration:
            raise NotSupportedError(f"{self.kind}.load_state_dict(): {FOLLOWS}")


class WarmupLR(Schedule):
    """A warm-up, then constant."""

    names = ("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type")


class WarmupDecayLR(Schedule):
    """A warm-up, then a line down."""

    names = ("total_num_steps", "warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type")


class WarmupCosineLR(Schedule):
    """A warm-up, then a cosine."""

    names = ("total_num_steps", "warmup_min_ratio", "warmup_num_steps", "cos_min_ratio", "warmup_type")


class LRRangeTest(Schedule):
    """A climb without end."""

    names = ("lr_range_test_min_lr", "lr_range_test_step_size", "lr_range_test_step_rate", "lr_range_test_staircase")


class OneCycle(Schedule):
    """Up, down, then decaying."""

    names = ("cycle_min_lr", "cycle_max_lr", "decay_lr_rate", "cycle_first_step_size", "cycle_second_step_size", "cycle_first_stair_count",
             "cycle_second_stair_count", "decay_step_size", "cycle_momentum", "cycle_min_mom", "cycle_max_mom", "decay_mom_rate")


def __getattr__(name: str) -> Any:
    from sherd.deepspeed.refusals import missing
    raise missing(f"deepspeed.runtime.lr_schedules.{name}")
