"""The simulator: the resource manager's own policy on a virtual clock, over a site and a demand
that are made up.

`scenario/` describes site and demand (`records`), reads their files (`tables`) and traces (`swf`).
`demand/` has the owners, who ask for nodes. `machines` is the hardware, `lifecycle` what becomes of
it, `world` what the database would hold; `world` makes snapshots for `policy.scheduler.plan`, and
`apply_plan` applies its plans; `moves` are asked for like requests. `check/` holds each plan
against the policy's promises. `clock` has the events, `randomness` numbers that depend on the seed
alone. `run` puts it all together, and `results/` counts, reports and draws.

Two runs of one scenario with one seed give equal results, byte by byte: nothing here reads a clock
or the order of a set. Each machine and each demand draws from a stream of its own, so that a change
of the policy changes neither what is asked for nor how long a job runs: runs that differ in the
policy alone can be compared job by job.
"""
