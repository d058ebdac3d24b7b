"""In light and in dark: every text stands out from what is behind it, as WCAG 2 AA has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import OpenPage, Site
from tests.kitchen import workflows as kitchen
from workflow import workflows
from workflow.testing import drain

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True), pytest.mark.timeout(300)]

FAINT = """
() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, alpha, below) => [0, 1, 2].map((i) => top[i] * alpha + below[i] * (1 - alpha));
  const behind = (element) => {
    const layers = [];
    for (let one = element; one; one = one.parentElement) layers.push(rgba(getComputedStyle(one).backgroundColor));
    return layers.reduceRight((below, layer) => over(layer, layer[3], below), rgba("Canvas"));
  };
  const light = (colour) => {
    const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = colour.slice(0, 3).map((c) => linear(c / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  let seen = 0;
  for (const element of document.body.querySelectorAll("*")) {
    const text = [...element.childNodes].filter((n) => n.nodeType === 3).map((n) => n.data.trim()).join(" ").trim();
    if (!text || !element.checkVisibility({ visibilityProperty: true, opacityProperty: true })) continue;
    if (element.closest("option, svg, .hidden, .skip, noscript")) continue;
    const style = getComputedStyle(element);
    let opacity = 1;
    for (let one = element; one; one = one.parentElement) opacity *= Number(getComputedStyle(one).opacity);
    const back = behind(element);
    const colour = rgba(style.color);
    const [a, b] = [light(over(colour, colour[3] * opacity, back)), light(back)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    seen += 1;
    if (ratio >= (large ? 3 : 4.5)) continue;
    found.push(`${ratio.toFixed(2)} ${element.tagName}.${element.className}: ${text.slice(0, 40)}`);
  }
  return { seen, dark: light(rgba(getComputedStyle(document.body).backgroundColor)) < 0.2, found };
}
"""


def faint(page: Page) -> dict[str, Any]:
    found: dict[str, Any] = page.evaluate(FAINT)
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read(open_page: OpenPage, site: Site, tmp_path: Path, scheme: str) -> None:
    never = str(tmp_path / "never")
    failed = workflows.dispatch(kitchen.soup, {"file": never}).run_id
    undone = workflows.dispatch(kitchen.toast, {}).run_id
    waiting = workflows.dispatch(kitchen.table, {"name": "eve"}, correlation_id="c").run_id
    cancelled = workflows.dispatch(kitchen.table, {"name": "bob"}).run_id
    workflows.dispatch(kitchen.table, {"name": "ann"}, delay=3_600)
    drain()
    workflows.cancel(cancelled)
    baking = workflows.dispatch(kitchen.bread, {"file": never}).run_id
    site.start_worker()
    page = open_page(f"/dashboard/{baking}/", color_scheme=scheme, reduced_motion="reduce")
    expect(page.locator('#tree [data-path="kitchen-bread.bake.oven"] progress')).to_be_visible()
    addresses = [f"{baking}/", f"{failed}/?node=kitchen-soup.try.taste", f"{undone}/", f"{waiting}/"]
    addresses += [
        f"{failed}/retry/",
        f"{waiting}/resume/",
        f"{waiting}/cancel/",
        f"{failed}/history/",
        f"{undone}/data/",
    ]
    addresses += [
        "",
        "?status=failed",
        "?nope=1",
        "?q=nothing",
        "definitions/",
        "definitions/kitchen-toast/",
        "definitions/kitchen-table/",
    ]
    hard_to_read: dict[str, list[str]] = {}
    for address in addresses:
        page.goto(f"{site.address}/dashboard/{address}")
        page.wait_for_selector("#main")
        found = faint(page)
        assert found["seen"] > 5, address
        assert found["dark"] == (scheme == "dark"), address
        if found["found"]:
            hard_to_read[address] = found["found"]
    assert hard_to_read == {}
