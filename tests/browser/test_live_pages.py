"""The pages as people use them: in a real browser, with a real worker, through the real forms."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from playwright.sync_api import CDPSession, Page, expect

from example_project.shop import gateway, webhooks
from example_project.shop.orders import open_branch, orders_file, place
from tests.browser.conftest import PATIENCE, OpenPage, Site, event, is_live, node, page_of
from tests.kitchen import workflows as kitchen
from workflow import Action, Fatal, Stage, Workflow, workflows
from workflow.models import Run, RunEvent
from workflow.registry import registry
from workflow.testing import drain, settle

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True), pytest.mark.timeout(300)]

HOSTILE = "</script><img src=x onerror=alert(1)>"


def status(page: Page, text: str) -> None:
    expect(page.locator("#status .text")).to_have_text(text)


def leave_a_mark(page: Page) -> Callable[[], None]:
    """Tells, when called later, whether the page has been loaded anew since."""
    page.evaluate("window.mark = true")

    def check() -> None:
        assert page.evaluate("window.mark") is True, "the page was loaded anew"

    return check


def an_order(kind: str = "plain") -> UUID:
    """One of the shop's example orders."""
    open_branch("browser")
    row = next(one for one in orders_file().orders if one.kind == kind)
    [order] = place("browser", [row], prefix="B")
    return workflows.dispatch(
        "order-fulfillment", {"order_id": order.pk}, correlation_id=f"order-{order.pk}"
    ).run_id


def pay() -> None:
    gateway.confirm_payments("browser")
    gateway.call_webhook("browser", webhooks.receive)


def test_an_order_is_watched_from_its_start_to_its_end(open_page: OpenPage, site: Site) -> None:
    run_id = an_order("flaky-carrier")
    page = open_page(page_of(run_id))
    status(page, "pending")
    is_live(page)
    expect(page.locator("#unserved")).to_contain_text("no live worker serves order-fulfillment")
    check = leave_a_mark(page)
    site.start_worker()
    status(page, "waiting")
    expect(page.locator("#unserved")).to_have_count(0)
    expect(node(page, "order-fulfillment.payment")).to_have_class(re.compile("s-waiting"))
    expect(node(page, "order-fulfillment.payment").locator(".for")).to_have_text("for payment.succeeded")
    expect(page.locator('#commands [data-command="resume"]')).to_be_visible()
    pay()
    status(page, "completed")
    expect(node(page, "order-fulfillment.ship.ship").locator(".attempt")).to_have_text("attempt 3")
    expect(node(page, "order-fulfillment.ship.ship")).to_have_class(re.compile("s-completed"))
    expect(page.locator("#done")).to_have_text("6 of 6")
    expect(page.locator("#commands a:visible")).to_have_count(0)
    seq = Run.objects.get(pk=run_id).seq
    expect(page.locator("#history tr")).to_have_count(seq)
    assert page.locator("#history tr td:first-child").all_inner_texts() == [str(n) for n in range(seq, 0, -1)]
    expect(page.locator("#timeline .bar.k-retry")).to_have_count(2)
    check()


def test_progress_moves(open_page: OpenPage, site: Site, tmp_path: Path) -> None:
    file = tmp_path / "baked"
    run_id = workflows.dispatch(kitchen.bread, {"file": str(file)}).run_id
    page = open_page(page_of(run_id))
    site.start_worker()
    bar = node(page, "kitchen-bread.bake.oven").locator("progress")
    expect(bar).to_be_visible()
    expect(bar).to_have_js_property("value", 40)
    expect(page.locator("#history")).to_contain_text("warming up")
    file.touch()
    status(page, "completed")
    expect(bar).to_be_hidden()


def test_a_failed_run_is_retried(open_page: OpenPage, site: Site, tmp_path: Path) -> None:
    file = tmp_path / "salted"
    run_id = workflows.dispatch(kitchen.soup, {"file": str(file), "complaint": HOSTILE}).run_id
    site.start_worker()
    page = open_page(page_of(run_id))
    status(page, "failed")
    expect(node(page, "kitchen-soup.try.taste").locator(".error")).to_contain_text(HOSTILE)
    file.touch()
    page.click('#commands [data-command="retry"]')
    dialog = page.locator("#dialog")
    expect(dialog).to_contain_text("Retry this run?")
    dialog.get_by_role("button", name="Retry the run").click()
    expect(page.locator(".box.good")).to_have_text("The run goes on from where it failed.")
    status(page, "completed")
    assert RunEvent.objects.filter(run_id=run_id, name="resumed").get().data["by"] == "ada"
    assert (
        RunEvent.objects.filter(run_id=run_id, name="action.started", node="kitchen-soup.mix.weigh").count()
        == 1
    )


def test_a_failed_run_is_retried_from_a_chosen_node(open_page: OpenPage, site: Site, tmp_path: Path) -> None:
    file = tmp_path / "salted"
    run_id = workflows.dispatch(kitchen.soup, {"file": str(file)}).run_id
    drain(run_id)
    file.touch()
    page = open_page(page_of(run_id))
    page.click('[data-node="kitchen-soup.mix.weigh"]')
    page.get_by_role("link", name="Retry from here…").click()
    expect(page.locator("#dialog")).to_contain_text("kitchen-soup.mix.weigh")
    page.get_by_role("button", name="Retry the run").click()
    site.start_worker()
    status(page, "completed")
    assert (
        RunEvent.objects.filter(run_id=run_id, name="action.started", node="kitchen-soup.mix.weigh").count()
        == 2
    )


def test_a_run_is_cancelled(open_page: OpenPage, site: Site, tmp_path: Path) -> None:
    run_id = workflows.dispatch(kitchen.bread, {"file": str(tmp_path / "never")}).run_id
    site.start_worker()
    page = open_page(page_of(run_id))
    expect(node(page, "kitchen-bread.bake.oven").locator("progress")).to_be_visible()
    page.click('#commands [data-command="cancel"]')
    page.locator("#dialog").get_by_label("Reason").fill("the oven is needed")
    page.get_by_role("button", name="Cancel the run").click()
    status(page, "cancelled")
    expect(node(page, "kitchen-bread.bake.oven")).to_have_class(re.compile("s-cancelled"))
    expect(page.locator("#history")).to_contain_text("reason the oven is needed")
    assert settle(run_id).run.status == "cancelled"


def test_a_wait_is_resumed_with_a_payload(open_page: OpenPage, site: Site) -> None:
    run_id = workflows.dispatch(kitchen.table, {"name": "eve"}).run_id
    site.start_worker()
    page = open_page(page_of(run_id))
    status(page, "waiting")
    page.click('#commands [data-command="resume"]')
    # In a dialog, or on a page of its own where the form could not be fetched in time.
    page.get_by_label("Payload").fill('{"guests": 2')
    page.get_by_role("button", name="Resume the run").click()
    expect(page.get_by_role("alert")).to_contain_text("the payload is no JSON")
    page.get_by_label("Payload").fill('{"guests": 2}')
    page.get_by_role("button", name="Resume the run").click()
    status(page, "completed")
    assert workflows.status(run_id).run.state["guests"] == 2
    page.locator("#data summary").press("Enter")  # a click may miss it, as the history grows
    expect(page.locator("#data-values")).to_contain_text('"guests": 2')


def test_a_compensation_that_is_suspended_is_resumed(open_page: OpenPage) -> None:
    def undo(state: dict[str, Any], ctx: Any) -> None:
        ctx.step.wait_event("refunded", "refund")

    def fail(state: dict[str, Any]) -> None:
        raise Fatal("no")

    actions = [Action("act", lambda state: None, compensate=undo), Action("fail", fail)]
    with registry.isolated():
        run_id = workflows.dispatch(Workflow("undoing", stages=[Stage("s", actions=actions)]), {}).run_id
        drain(run_id)
        page = open_page(page_of(run_id))
        status(page, "compensating")
        is_live(page)
        page.click('#commands [data-command="resume"]')
        page.get_by_role("button", name="Resume the run").click()
        expect(page.locator("#history")).to_contain_text("step answered")
        expect(page.locator("#commands a:visible")).to_have_count(0)
        drain(run_id)
        status(page, "compensated")


def test_a_dialog_that_is_dismissed_does_nothing(open_page: OpenPage) -> None:
    run_id = workflows.dispatch(kitchen.table, {"name": "eve"}).run_id
    drain(run_id)
    page = open_page(page_of(run_id))
    page.click('#commands [data-command="cancel"]')
    page.get_by_role("link", name="Leave it alone").click()
    expect(page.locator("#dialog")).to_be_hidden()
    status(page, "waiting")
    assert Run.objects.get(pk=run_id).status == "waiting"


def test_the_connection_is_lost_and_comes_back(open_page: OpenPage, site: Site, tmp_path: Path) -> None:
    file = tmp_path / "baked"
    run_id = workflows.dispatch(kitchen.bread, {"file": str(file)}).run_id
    site.start_worker()
    page = open_page(page_of(run_id))
    expect(node(page, "kitchen-bread.bake.oven").locator("progress")).to_be_visible()
    is_live(page)
    check = leave_a_mark(page)
    site.stop()
    expect(page.locator("#connection")).to_contain_text("Disconnected")
    file.touch()
    assert settle(run_id, PATIENCE).run.status == "completed"
    status(page, "running")  # what it knows
    site.start()
    is_live(page)
    status(page, "completed")
    seq = Run.objects.get(pk=run_id).seq
    expect(page.locator("#history tr")).to_have_count(seq)
    assert page.locator("#history tr td:first-child").all_inner_texts() == [str(n) for n in range(seq, 0, -1)]
    check()


def test_without_sockets_the_page_still_ends_right(open_page: OpenPage, site: Site, tmp_path: Path) -> None:
    """A proxy that does not know WebSocket: the page says that it is disconnected, and looks by itself."""
    file = tmp_path / "baked"
    run_id = workflows.dispatch(kitchen.bread, {"file": str(file)}).run_id
    page = open_page()
    page.route_web_socket(re.compile("/ws/"), lambda socket: socket.close(code=1011))
    page.goto(site.address + page_of(run_id))
    expect(page.locator("#connection")).to_contain_text("Disconnected")
    check = leave_a_mark(page)
    site.start_worker()
    file.touch()
    status(page, "completed")
    check()


def test_who_logs_out_elsewhere_is_told(open_page: OpenPage, site: Site, ada: User) -> None:
    run_id = workflows.dispatch(kitchen.table, {"name": "eve"}).run_id
    page = open_page(page_of(run_id))
    is_live(page)
    Session.objects.all().delete()
    expect(page.locator("#connection")).to_contain_text("You have been logged out")


def test_the_list_moves(open_page: OpenPage, site: Site, tmp_path: Path) -> None:
    page = open_page()
    expect(page.locator("#none")).to_contain_text("No run yet")
    is_live(page)
    check = leave_a_mark(page)
    file = tmp_path / "baked"
    run_id = workflows.dispatch(kitchen.bread, {"file": str(file)}, correlation_id=HOSTILE).run_id
    site.start_worker()
    row = page.locator(f"#run-{run_id}")
    expect(row.locator(".status")).to_contain_text("running")
    expect(row).to_contain_text(HOSTILE)
    expect(page.locator("#count-running .number")).to_have_text("1")
    expect(page.locator("#workers summary")).to_have_text("1 worker alive")
    page.click("#workers summary")
    file.touch()
    expect(row.locator(".status")).to_contain_text("completed")
    expect(page.locator("#count-completed .number")).to_have_text("1")
    expect(page.locator("#workers")).to_have_attribute("open", "")  # redrawn around what a person has opened
    check()
    page.fill("[name=q]", str(run_id)[:13])
    page.keyboard.press("Enter")
    expect(page.locator("#rows tr")).to_have_count(1)


def test_with_the_keyboard_alone(open_page: OpenPage) -> None:
    run_id = workflows.dispatch(kitchen.table, {"name": "eve"}).run_id
    drain(run_id)
    page = open_page()
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    tab_to(page, f'a.id[href="{page_of(run_id)}"]')
    page.keyboard.press("Enter")
    status(page, "waiting")
    tab_to(page, '[data-node="kitchen-table.guest"]')
    page.keyboard.press("Enter")
    expect(page.locator(".detail")).to_contain_text("guest.came")
    tab_to(page, "[data-close]")
    page.keyboard.press("Enter")
    expect(page.locator(".detail")).to_have_count(0)
    expect(page.locator('[data-node="kitchen-table.guest"]')).to_be_focused()
    tab_to(page, '[data-command="cancel"]', back=True)
    page.keyboard.press("Enter")
    expect(page.locator("#dialog [name=reason]")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#dialog")).to_be_hidden()
    page.keyboard.press("Enter")
    expect(page.locator("#dialog [name=reason]")).to_be_focused()
    page.keyboard.type("typed")
    page.keyboard.press("Enter")
    status(page, "cancelled")


def tab_to(page: Page, selector: str, *, back: bool = False) -> None:
    """Presses Tab until that has the focus, and it can be seen that it has."""
    target = page.locator(selector)
    for _ in range(60):
        page.keyboard.press("Shift+Tab" if back else "Tab")
        if target.evaluate("element => element === document.activeElement"):
            assert target.evaluate("element => getComputedStyle(element).outlineStyle") != "none"
            return
    raise AssertionError(f"{selector} can't be reached")


@pytest.mark.parametrize("width", [360, 390, 768, 1280])
def test_no_page_is_wider_than_its_window(open_page: OpenPage, site: Site, width: int) -> None:
    run_id = an_order("undeliverable")
    site.start_worker()
    page = open_page("/dashboard/", width=width)
    page.goto(site.address + page_of(run_id))
    status(page, "waiting")
    pay()
    status(page, "compensated")
    expect(page.locator("#tree")).to_have_class(re.compile("backwards"))
    page.click('[data-node="order-fulfillment.ship.ship"]')
    expect(page.locator(".detail")).to_contain_text("does not deliver")
    addresses = [
        page_of(run_id),
        f"{page_of(run_id)}?node=order-fulfillment.ship.ship",
        "/dashboard/",
        "/dashboard/definitions/",
        "/dashboard/definitions/order-fulfillment/",
        f"{page_of(run_id)}history/",
        f"{page_of(run_id)}data/",
    ]
    for address in addresses:
        page.goto(site.address + address)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, address


def test_a_thousand_nodes_stay_fluid(open_page: OpenPage, site: Site) -> None:
    """What a hundred entries cost the page's thread, which has to take input as well: seconds of its own time."""
    from workflow import Stage, Workflow
    from workflow.registry import registry

    large = Workflow("large", stages=[Stage(f"s{n}", run=kitchen.burn) for n in range(500)])
    registry.register(large)
    run_id = workflows.dispatch(large).run_id
    page = open_page(page_of(run_id))
    is_live(page)
    expect(page.locator("#tree [data-path]")).to_have_count(1_001)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    before = cost_so_far(session)
    for number in range(1, 101):
        event(run_id, f"large.s{number - 1}.s{number - 1}#run", number)
    expect(page.locator('#history tr[data-seq="100"]')).to_have_count(1)
    after = cost_so_far(session)
    spent = {name: after[name] - before[name] for name in after}
    assert spent["TaskDuration"] < 5, spent  # 1 s was measured


def cost_so_far(session: CDPSession) -> dict[str, float]:
    """Seconds that the page's thread has been at work, by what it did."""
    metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    return {
        name: metrics[name]
        for name in ("ScriptDuration", "LayoutDuration", "RecalcStyleDuration", "TaskDuration")
    }


def test_pictures(open_page: OpenPage, site: Site, pictures: Path, tmp_path: Path) -> None:
    """The screenshots of the documentation: SCREENSHOTS=1 keeps them."""
    site.start_worker()
    open_branch("browser")
    rows = {row.number: row for row in orders_file().orders}
    kinds: dict[str, UUID] = {}
    for index, row in enumerate(list(rows.values())[:45]):
        [order] = place("browser", [row], prefix=f"P{index}")
        handle = workflows.dispatch(
            "order-fulfillment", {"order_id": order.pk}, correlation_id=f"order-{order.pk}"
        )
        kinds.setdefault(row.kind, handle.run_id)
    open_soup = workflows.dispatch(kitchen.soup, {"file": str(tmp_path / "never")}).run_id
    workflows.dispatch(kitchen.table, {"name": "eve"})
    baking = workflows.dispatch(kitchen.bread, {"file": str(tmp_path / "later")}).run_id
    settle(open_soup, PATIENCE)
    for run_id in kinds.values():
        wait_for_payment(run_id)
    pay()
    pay()
    flaky, undone = kinds["flaky-carrier"], kinds["undeliverable"]
    for run_id in (flaky, undone):
        settle(run_id, PATIENCE)
    for scheme in ("light", "dark"):
        page = open_page(color_scheme=scheme, height=800)
        is_live(page)
        page.wait_for_timeout(1_600)  # one refresh of the list: the picture has settled counts
        page.screenshot(path=pictures / f"runs-{scheme}.png")
        page.goto(site.address + page_of(undone if scheme == "light" else flaky))
        page.wait_for_selector("#timeline .bar")
        is_live(page)
        page.set_viewport_size({"width": 1280, "height": 1100})
        page.screenshot(path=pictures / f"run-{scheme}.png")
        page.goto(site.address + "/dashboard/definitions/order-fulfillment/")
        page.set_viewport_size({"width": 1280, "height": 720})
        page.screenshot(path=pictures / f"definition-{scheme}.png")
    phone = open_page(width=390, height=844, color_scheme="dark")
    phone.goto(site.address + page_of(baking))
    expect(node(phone, "kitchen-bread.bake.oven").locator("progress")).to_be_visible()
    is_live(phone)
    phone.wait_for_selector("#timeline .bar")
    phone.screenshot(path=pictures / "run-phone.png")
    for picture in pictures.glob("*.png"):
        assert 5_000 < picture.stat().st_size < 400_000, picture


def wait_for_payment(run_id: UUID) -> None:
    """Until the run is parked, or over."""
    from tests.support.workers import eventually

    eventually(lambda: Run.objects.get(pk=run_id).status not in ("pending", "running"))
