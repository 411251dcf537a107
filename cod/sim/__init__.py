"""The simulator: the resource manager's own policy on a virtual clock, over a site and a demand that are made up.

`scenario` describes site and demand, `draws` makes numbers that depend on the seed alone, `clock` has the events,
`machines` is the hardware, `world` what the database would hold, with snapshots for `policy.scheduler.plan` and its
plans applied; `owners`, `jobs`, `queue` and `farm` are who asks for nodes; `tally` counts; `rules` watches every plan;
`run` puts all of it together; `swf` reads traces; `svg` and `plots` draw.

Two runs of one scenario with one seed give equal results, byte by byte: nothing here reads a clock or the order of a
set. Each machine and each demand draws from a stream of its own, so that a change of the policy changes neither what is
asked for nor how long a job runs: runs that differ in the policy alone can be compared job by job.
"""
