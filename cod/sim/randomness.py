"""Numbers that depend on the seed alone: durations, arrivals, waves of the day and the week."""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random

from cod.sim.scenario.records import Arrivals, Runtime

DAY, HOUR = 86400.0, 3600.0


def stream(seed: int, *names: object) -> Random:
    """Return a separate random stream for each use: equal seed and names give the same stream on
    any machine."""
    return Random("/".join(map(str, (seed, *names))))


def about(random: Random, median: float, spread: float) -> float:
    """Return a random duration around `median`: log-normal with `spread` as the standard deviation
    of its logarithm; 0: always the median."""
    return median * math.exp(random.gauss(0.0, spread)) if spread else median


def runtime(random: Random, rule: Runtime) -> float:
    """Return a random run time of a job, in seconds."""
    return min(max(about(random, rule.median, rule.spread), rule.least), rule.most)


def wave(time: float, day: float, week: float, peak_hour: float) -> float:
    """Return the factor of the demand at `time` (the run begins on a Monday at midnight): 1 on
    average over a day without `week`.

    day   amplitude over the day, 0 to 1; highest at `peak_hour`
    week  by how much Saturday and Sunday are lower, 0 to 1
    """
    swing = 1.0 + day * math.cos(2 * math.pi * (time / HOUR - peak_hour) / 24.0)
    return swing * (1.0 - week if int(time // DAY) % 7 >= 5 else 1.0)


def arrivals(random: Random, rule: Arrivals, until: float) -> Iterator[tuple[float, int]]:
    """Yield (time, number of jobs) up to `until`: a Poisson process of bursts whose rate follows
    the wave (thinning).

    A burst has `rule.burst` jobs on average, geometrically distributed; the rate of jobs stays
    `rule.per_day`.
    """
    most = rule.per_day / rule.burst / DAY * (1.0 + rule.day_wave)
    time = 0.0
    while most > 0:
        time += random.expovariate(most)
        if time >= until:
            return
        rate = (
            rule.per_day
            / rule.burst
            / DAY
            * wave(time, rule.day_wave, rule.week_wave, rule.peak_hour)
        )
        if random.random() * most <= rate:
            yield time, _burst(random, rule.burst)


def _burst(random: Random, mean: float) -> int:
    if mean <= 1.0:
        return 1
    return 1 + int(math.log(1.0 - random.random()) / math.log(1.0 - 1.0 / mean))
