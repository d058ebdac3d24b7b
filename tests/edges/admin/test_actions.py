"""The actions of Django's admin, and what texts of strangers do to its pages: nothing."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import override_settings

from tests.edges.admin.conftest import (
    HOSTILE,
    MODELS,
    NOBODY,
    act,
    html,
    lists,
    page_of,
    told,
    worker,
)
from tests.support import rows, web
from workflow import bulk, workflows
from workflow.models import Event, Job, Node, Run, RunEvent, Step
from workflow.redact import MASK
from workflow.testing import drain

pytestmark = pytest.mark.django_db


# --- hostile and secret texts -------------------------------------------------------------------


def hostile_rows() -> dict[str, list[Any]]:
    """Every text column that a person can see holds markup, a direction override and control characters."""
    run_id = web.failed(
        HOSTILE, correlation_id=HOSTILE[:200], idempotency_key=HOSTILE, context={HOSTILE: HOSTILE}
    )
    Run.objects.filter(pk=run_id).update(workflow=HOSTILE, queue=HOSTILE)
    Node.objects.filter(run_id=run_id).update(path=HOSTILE, output={HOSTILE: [HOSTILE]}, wait_event=HOSTILE)
    node = Node.objects.filter(run_id=run_id).latest("id")
    rows.note(run_id, HOSTILE[:40], HOSTILE, {HOSTILE: HOSTILE, "message": "m" * 1_000_000})
    Step.objects.create(
        run_id=run_id,
        node_id=node.pk,
        key=HOSTILE,
        kind="run",
        status="failed",
        value=HOSTILE,
        error={"message": HOSTILE},
    )
    other = workflows.dispatch(web.FREE, queue=HOSTILE).run_id
    Job.objects.filter(run_id=other).update(last_error=HOSTILE)
    workflows.publish(HOSTILE, {HOSTILE: HOSTILE}, correlation=HOSTILE, event_id=HOSTILE)
    lost = worker(hostname=HOSTILE, queues=[HOSTILE], serves=[{"name": HOSTILE}])
    return {
        "run": [run_id, other],
        "node": [node.pk],
        "job": list(Job.objects.values_list("pk", flat=True)),
        "event": list(Event.objects.values_list("pk", flat=True)),
        "worker": [lost.pk],
    }


@pytest.mark.parametrize("model", MODELS)
def test_hostile_texts_are_shown_as_the_texts_they_are(client, model):
    there = hostile_rows()
    addresses = [lists(model), lists(model, q=HOSTILE), *(page_of(model, pk) for pk in there[model])]
    for address in addresses:
        body = html(client.get(address))
        assert "<img src=x" not in body
        assert body.count("<script") == body.count("</script>")
        # Addresses, what was typed into the search box, and the names of checkboxes are not laid out.
        content = re.sub(r' (?:value|href|aria-label)="[^"]*"', "", body)
        for hidden in "\u202e\x1b\x85":
            assert hidden not in content
        assert len(body) < 500_000


@pytest.mark.parametrize("action", ["retry", "cancel", "resume"])
def test_hostile_texts_in_what_an_action_tells(client, action):
    there = hostile_rows()
    body = html(act(client, action, *there["run"]))
    assert "<img src=x" not in body


@override_settings(WORKFLOW={"REDACT": ["card"]})
def test_secrets_are_masked_on_every_page(client):
    secret = "4111-1111-1111"
    run_id = web.failed("o", card=secret, context={"card": secret})
    node = Node.objects.get(run_id=run_id, path="web-order.pay.charge")
    Step.objects.create(
        run_id=run_id, node_id=node.pk, key="card", kind="run", status="completed", value=secret
    )
    Step.objects.create(
        run_id=run_id,
        node_id=node.pk,
        key="k",
        kind="run",
        status="failed",
        error={"message": f"no {secret}"},
    )
    again = workflows.dispatch(web.ORDER, {"order_id": "p", "card": secret}).run_id
    Job.objects.filter(run_id=again).update(last_error=f"ACTION_FAILED: {secret} refused")
    workflows.publish("paid", {"card": secret})
    pages = [lists(model) for model in MODELS]
    pages += [page_of("run", run_id), page_of("run", again), page_of("node", node.pk)]
    pages += [page_of("job", pk) for pk in Job.objects.values_list("pk", flat=True)]
    pages += [page_of("event", Event.objects.get().pk)]
    for address in pages:
        assert secret not in html(client.get(address)), address
    assert MASK in html(client.get(page_of("run", run_id)))
    assert "ACTION_FAILED" in html(client.get(page_of("run", run_id)))
    assert Run.objects.get(pk=run_id).input["card"] == secret


# --- actions ------------------------------------------------------------------------------------


def test_the_actions_are_offered_to_who_may_and_to_nobody_else(client, viewer):
    run_id = web.failed()
    for action in ("retry", "cancel", "resume"):
        assert f'value="{action}"' in html(client.get(lists("run")))
        assert f'value="{action}"' not in html(viewer.get(lists("run")))
        act(viewer, action, run_id)
    assert workflows.status(run_id).run.status == "failed"
    assert RunEvent.objects.filter(run_id=run_id, name="resumed").count() == 0


def test_retry_says_how_many_go_on_and_why_others_do_not(client):
    good = [web.failed("a"), web.failed("b")]
    parked, over = web.waiting("c"), [web.completed(), web.completed()]
    web.FAULTY.clear()
    messages = told(act(client, "retry", *good, parked, *over))
    assert messages[0] == "2 runs retried."
    assert messages[1].startswith("2 runs refused: the run is completed, so it can't be retried (")
    assert all(str(run_id) in messages[1] for run_id in over)
    assert messages[2] == f"1 run refused: the run is waiting, so it can't be retried ({parked})."
    for run_id in good:
        assert RunEvent.objects.filter(run_id=run_id, name="resumed").get().data["by"] == "olga"
        drain(run_id)
        assert workflows.status(run_id).run.status == "waiting"


def test_cancel_and_resume_record_who_asked(client):
    one, two = web.waiting("a"), web.waiting("b")
    assert told(act(client, "cancel", one)) == ["1 run cancelled."]
    assert told(act(client, "resume", two)) == ["1 run resumed."]
    assert RunEvent.objects.get(run_id=one, name="cancelled").data["by"] == "olga"
    assert RunEvent.objects.get(run_id=two, name="resumed").data["by"] == "olga"
    drain(two)
    assert [workflows.status(run_id).run.status for run_id in (one, two)] == ["cancelled", "completed"]


def test_an_action_on_all_that_a_filter_matches_stops_at_a_bound_and_says_so(client, monkeypatch):
    monkeypatch.setattr(bulk, "MOST", 3)
    runs = [workflows.dispatch(web.FREE).run_id for _ in range(5)]
    address = lists("run", status__exact="pending")
    body = {"action": "cancel", "select_across": "1", "_selected_action": [str(runs[0])]}
    first = told(client.post(address, body, follow=True))
    assert first[0] == "3 runs cancelled."
    assert first[1].startswith("That was the first 3; more runs match.")
    assert told(client.post(address, body, follow=True)) == ["2 runs cancelled."]
    assert {workflows.status(run_id).run.status for run_id in runs} == {"cancelled"}


def test_an_action_needs_csrf_and_ids_and_a_post(client):
    run_id = web.waiting()
    strict = web.client_of(User.objects.get(username="olga"), enforce_csrf_checks=True)
    chosen = {"action": "cancel", "_selected_action": [str(run_id)]}
    assert strict.post(lists("run"), chosen).status_code == 403
    assert client.post(lists("run"), {**chosen, "_selected_action": ["x' OR 1=1"]}).status_code == 400
    assert client.get(lists("run"), chosen).status_code == 400
    assert told(act(client, "cancel", NOBODY)) == []
    assert workflows.status(run_id).run.status == "waiting"
