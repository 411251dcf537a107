"""What Slurm's commands say, and what that means; the sentences are those of 22.05.8."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from pathlib import Path

import pytest

from cod.vcm.batch.commands import CommandFailed, NotUnderstood
from cod.vcm.pool import NotYet
from cod.vcm.slurm.commands import Reservation, Slurm, StillPlanned
from cod.vcm.slurm.needs import Rules
from tests.unit.test_slurm_view import sinfo, squeue

Says = Callable[..., Slurm]
ALONE = "squeue: option '--json' doesn't allow an argument"
RESERVATIONS = """\
ReservationName=cod-51 StartTime=2026-11-23T14:51:23 EndTime=2027-11-23T14:51:23 Nodes=n[2-3] NodeCnt=2 State=ACTIVE
ReservationName=later StartTime=2027-11-23T14:51:23 EndTime=2027-11-24T14:51:23 Nodes=n9 NodeCnt=1 State=INACTIVE
ReservationName=licence StartTime=2026-11-23T14:51:23 Nodes=(null) NodeCnt=0 State=ACTIVE
"""


@pytest.fixture
def says(tmp_path: Path) -> Says:
    """A cluster whose commands write down what they are asked, and answer by the words that they
    are given: status, standard output, standard error. Without others sinfo lists no node."""

    def cluster(**answers: tuple[int, str, str]) -> Slurm:
        for command in ("squeue", "sinfo", "scontrol", "scancel"):
            lines = [
                "#!/bin/sh",
                f'echo "{command} $*" >> {tmp_path}/asked',
                f'[ "$1" = --json=list ] && {{ echo "{ALONE}" >&2; exit 1; }}',
            ]
            for words, (status, out, err) in answers.items():
                for name, text in (("out", out), ("err", err)):
                    (tmp_path / f"{words}.{name}").write_text(text)
                pattern = words.replace("_", "*")
                lines.append(
                    f'case "{command} $*" in *{pattern}*) cat {tmp_path}/{words}.out; '
                    f"cat {tmp_path}/{words}.err >&2; exit {status};; esac"
                )
            if command == "sinfo" and "sinfo" not in answers:
                lines.append(f"cat <<'END'\n{sinfo().decode()}\nEND")
            (tmp_path / command).write_text("\n".join(lines) + "\n")
            (tmp_path / command).chmod(0o755)
        return Slurm("vc", {}, str(tmp_path))

    return cluster


def asked(folder: Path) -> list[str]:
    return (folder / "asked").read_text().splitlines()


def test_the_view_has_nodes_jobs_and_reservations(says: Says) -> None:
    seen = says(
        squeue=(0, squeue({}).decode(), ""),
        sinfo=(0, sinfo({}, {"name": "n4"}).decode(), ""),
        reservation=(0, RESERVATIONS, ""),
    ).view()
    assert [job.id for job in seen.jobs] == [7]
    # n2 is reserved
    assert {name: node.usable for name, node in seen.nodes.items()} == {"n2": False, "n4": True}
    assert seen.reservations["cod-51"] == Reservation("cod-51", ("n2", "n3"))
    assert seen.reservations.keys() == {"cod-51", "licence"}


def test_a_node_is_kept_free_for_a_window_in_universal_time(says: Says, tmp_path: Path) -> None:
    slurm = says(reservation=(0, RESERVATIONS, ""), s9=(1, "", "Invalid node name specified"))
    assert slurm.all_reservations() == {"cod-51", "later", "licence"}
    slurm.keep_free(Reservation("w", ("n2",)), 86400.0, 90061.0)
    slurm.keep_free(Reservation("w", ("n2",)), 86400.0, inf)
    slurm.keep_free(Reservation("w", ("s9",)), 86400.0, inf)  # it has left
    words = "scontrol create reservation reservationname=w nodes=n2 users=root"
    starts = "starttime=1970-01-02T00:00:00"
    assert asked(tmp_path)[1:3] == [
        f"{words} {starts} endtime=1970-01-02T01:01:01 flags=maint,ignore_jobs",
        f"{words} {starts} duration=infinite flags=maint,ignore_jobs",
    ]


@pytest.mark.parametrize(
    ("state", "nodes", "listed", "used"),
    [
        ("COMPLETED", "n2", 3, 0),  # it has ended since the nodes were listed
        ("RUNNING", "n2", 0, 4),  # it has started since
        ("RUNNING", "n2", 1, 1),
        ("COMPLETING", "n2", 0, 0),
        ("PENDING", "", 2, 0),
    ],
)
def test_what_changes_between_two_lists_is_no_contradiction(
    says: Says, state: str, nodes: str, listed: int, used: int
) -> None:
    seen = says(
        squeue=(0, squeue({"job_state": state, "nodes": nodes}).decode(), ""),
        sinfo=(0, sinfo({"alloc_cpus": listed}).decode(), ""),
        reservation=(0, "No reservations in the system", ""),
    ).view()
    assert seen.nodes["n2"].cpus_used == used


@pytest.mark.parametrize(
    ("command", "answer", "error"),
    [
        (
            "squeue",
            (0, squeue(errors=[{"error": "Unspecified error"}]).decode(), ""),
            CommandFailed,
        ),
        ("squeue", (1, "", "slurm_load_jobs error"), CommandFailed),
        ("sinfo", (0, "", ""), NotUnderstood),
        (
            "reservation",
            (1, "", "slurm_load_reservations error: Unable to contact slurm controller"),
            CommandFailed,
        ),
        ("reservation", (0, "something else", ""), NotUnderstood),
    ],
)
def test_a_cluster_that_cannot_be_read(
    says: Says, command: str, answer: tuple[int, str, str], error: type[Exception]
) -> None:
    fine = {
        "squeue": (0, squeue({}).decode(), ""),
        "sinfo": (0, sinfo({}).decode(), ""),
        "reservation": (0, "No reservations in the system", ""),
    }
    with pytest.raises(error):
        says(**{**fine, command: answer}).view()


def test_an_answer_that_is_not_understood_names_the_release(says: Says) -> None:
    slurm = says(version=(0, "slurm 22.05.8\n", ""), sinfo=(0, '{"errors": [], "sinfo": []}', ""))
    with pytest.raises(NotUnderstood, match=r"^slurm 22\.05\.8: sinfo --json: nodes"):
        slurm.node("n2")


def test_commands_that_are_missing() -> None:
    with pytest.raises(CommandFailed, match="set `path`"):
        Slurm("vc", {}, "/nonexistent").view()


def test_a_job_that_should_not_run_again_runs_again(says: Says, tmp_path: Path) -> None:
    cluster = says()
    script = (
        (tmp_path / "scontrol").read_text()
        + f'case "$*" in "requeue Incomplete 42") [ -e {tmp_path}/may ] || {{ '
        "echo Requested operation is presently disabled for job 42 >&2; exit 1; };;\n"
        f'"update jobid=42 requeue=1") touch {tmp_path}/may;; esac\n'
    )
    (tmp_path / "scontrol").write_text(script)
    assert cluster.requeue("42")
    assert asked(tmp_path) == [
        "scontrol requeue Incomplete 42",
        "scontrol update jobid=42 requeue=1",
        "scontrol requeue Incomplete 42",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "Invalid job id specified for job 9",
        "Job has already finished for job 9",
        "Job is pending execution for job 9",
        "Job/step already completing or completed for job 9",
    ],
)
def test_a_job_that_does_not_run_any_more_need_not_be_put_back(says: Says, text: str) -> None:
    assert says(requeue=(1, "", text)).requeue("9")


def test_an_interactive_job_cannot_be_put_back(says: Says) -> None:
    assert not says(
        requeue=(1, "", "Only batch jobs are accepted or processed for job 44")
    ).requeue("44")


def test_what_is_so_already_is_fine(says: Says) -> None:
    says(update=(1, "", "slurm_update error: Invalid node state specified")).resume("n2")
    gone = says(
        delete_nodename=(
            1,
            "",
            (
                "scontrol: error: failed to delete nodes n2\n"
                "delete_node nodename=n2: Invalid node name specified"
            ),
        ),
        update=(1, "", "slurm_update error: Invalid node name specified"),
        reservation=(1, "", "delete_reservation reservation=q: Requested reservation is invalid"),
    )
    gone.drain("n2", "cod")
    gone.down("n2", "cod")
    gone.delete("n2")
    gone.release("q")


@pytest.mark.parametrize(
    "act",
    [
        lambda cluster: cluster.resume("n2"),
        lambda cluster: cluster.drain("n2", "cod"),
        lambda cluster: cluster.delete("n2"),
        lambda cluster: cluster.requeue("7"),
        lambda cluster: cluster.bind("7", "q"),
        lambda cluster: cluster.cancel("7"),
        lambda cluster: cluster.set_features("n2", ["cod"]),
    ],
)
@pytest.mark.parametrize(
    "answer", [(1, "", "Unexpected message received"), (1, "", ""), (0, "", "error: odd")]
)
def test_everything_else_fails(
    says: Says, act: Callable[[Slurm], object], answer: tuple[int, str, str]
) -> None:
    with pytest.raises(CommandFailed):
        act(says(scontrol=answer, scancel=answer))


def test_a_node_that_backfill_counts_on_is_not_deleted(says: Says, tmp_path: Path) -> None:
    """slurmctld 22.05.8 would die of it at its next cycle."""
    planned = {"state_flags": ["DRAIN", "DYNAMIC_NORM", "PLANNED"]}
    with pytest.raises(StillPlanned, match="still plans with n2"):
        says(sinfo=(0, sinfo(planned).decode(), "")).delete("n2")
    says(sinfo=(0, sinfo({}).decode(), "")).delete("n2")
    assert [line for line in asked(tmp_path) if "delete" in line] == ["scontrol delete nodename=n2"]


def test_what_is_busy_is_not_yet(says: Says) -> None:
    busy = says(
        nodename=(1, "", "delete_node nodename=n2: Requested nodes are busy"),
        reservation=(1, "", "delete_reservation reservation=q: Requested reservation is in use"),
    )
    with pytest.raises(NotYet):
        busy.delete("n2")
    with pytest.raises(NotYet):
        busy.release("q")


@pytest.mark.parametrize(
    ("config", "partition", "rules"),
    [
        (
            "SelectType = select/cons_tres\nSelectTypeParameters    = CR_CPU\n",
            "OverSubscribe=NO",
            Rules("vc", limit=9),
        ),
        (
            "SelectTypeParameters = CR_CORE_MEMORY\n",
            "OverSubscribe=EXCLUSIVE",
            Rules("vc", True, "core", True, 9),
        ),
        ("SelectTypeParameters = CR_Socket,CR_LLN\n", "", Rules("vc", False, "socket", False, 9)),
        (
            "SelectType = select/linear\nSelectTypeParameters = CR_MEMORY\n",
            "",
            Rules("vc", True, "cpu", True, 9),
        ),
        (
            "AccountingStorageEnforce = associations,limits,qos,safe\nSelectTypeParameters = CR_CPU\n",
            "",
            Rules("vc", limit=9, limits=True),
        ),
        ("AccountingStorageEnforce = associations,nosteps\n", "", Rules("vc", limit=9)),
    ],
)
def test_the_configuration_says_what_jobs_share(
    says: Says, config: str, partition: str, rules: Rules
) -> None:
    cluster = says(
        config=(0, config, ""), partition=(0, f"PartitionName=vc {partition} State=UP\n", "")
    )
    assert cluster.rules(9) == rules


def test_a_partition_that_is_not_there(says: Says) -> None:
    with pytest.raises(CommandFailed, match="Partition vc not found"):
        says(partition=(1, "Partition vc not found", "")).rules(9)


def test_another_thread_may_forget_the_layout(says: Says, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = says(squeue=(0, squeue({}).decode(), ""), sinfo=(0, sinfo({}).decode(), ""))

    def forget(*_: object) -> None:
        slurm._known_layout = None  # as after an answer that cannot be read

    monkeypatch.setattr("cod.vcm.slurm.commands.log.info", forget)
    assert slurm.node("n2") is not None
