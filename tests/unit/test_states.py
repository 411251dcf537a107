"""The lifecycle table keeps its promises."""

from cod import states
from cod.states import NODE_RULES, NODE_TRANSITIONS, NodeEvent, NodeState


def test_every_state_in_motion_has_a_deadline_and_ways_out() -> None:
    for state, rule in NODE_RULES.items():
        assert (rule.deadline is not None) == (rule.kind == "motion"), state
        if rule.kind == "motion":
            for event in (NodeEvent.TIMED_OUT, NodeEvent.EXHAUSTED, NodeEvent.QUARANTINED):
                assert (state, event) in NODE_TRANSITIONS, (state, event)


def test_every_state_can_be_reached_and_left() -> None:
    targets = set(NODE_TRANSITIONS.values())
    assert set(NodeState) == targets
    assert {state for state, _ in NODE_TRANSITIONS} == set(NodeState)


def test_only_the_crossroads_leads_to_the_reserve() -> None:
    into = {
        state for (state, _), target in NODE_TRANSITIONS.items() if target is NodeState.INACTIVE
    }
    assert into == {NodeState.TRAMPOLINE}


def test_the_diagram_names_every_state() -> None:
    assert all(f'"{state}" [' in states.dot() for state in NodeState)
