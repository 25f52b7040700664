"""A clock that moves when it is told to."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class FakeClock:
    wall_ms: int = 1_763_708_400_000
    monotonic: float = 1000.0
    slept_seconds: list[float] = field(default_factory=list[float])

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic_seconds(self) -> float:
        return self.monotonic

    def sleep(self, seconds: float) -> None:
        self.slept_seconds.append(seconds)
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Both clocks go on together."""
        self.wall_ms += int(seconds * 1000)
        self.monotonic += seconds

    def jump(self, seconds: float) -> None:
        """The wall clock is set, back or forth; the monotonic one does not notice."""
        self.wall_ms += int(seconds * 1000)
