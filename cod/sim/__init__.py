"""The simulator: the resource manager's own policy on a virtual clock, over a made-up site and
demand.

`scenario/` describes site and demand (`records`), and reads their files (`tables`) and traces
(`swf`). `demand/` has the owners, who request nodes. `machines` is the hardware, `lifecycle` has
its transitions, `world` the facts that the database would contain. `world` makes snapshots for
`policy.scheduler.plan`, and `apply_plan` applies its plans; `moves` has moves of nodes. `check/`
compares each plan with the policy's promises. `clock` has the events, `randomness` numbers that
depend on the seed alone. `run` runs a scenario, and `results/` counts, reports and draws charts.

Two runs of one scenario with one seed give equal results, byte by byte: the simulator reads no
clock and depends on no set's order. Each machine and each demand draws from a random stream of its
own, so that a change of the policy changes neither the demand nor how long a job runs. Runs that
differ in the policy alone can therefore be compared job by job.
"""
