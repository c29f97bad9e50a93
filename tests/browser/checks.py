"""What holds of every page: it fits its window, and its text stands out."""

from __future__ import annotations

from playwright.sync_api import Page

_CONTRAST = """() => {
    const linear = (v) => v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4;
    const luminance = (rgb) => rgb.map(linear)
        .reduce((sum, v, n) => sum + v * [0.2126, 0.7152, 0.0722][n], 0);
    const parse = (text) => text.match(/[\\d.]+/g).map(Number);
    const behind = (node) => {
        for (let at = node; at; at = at.parentElement) {
            const colour = parse(getComputedStyle(at).backgroundColor);
            if (colour.length === 3 || colour[3] > 0.99) return colour.slice(0, 3);
        }
        return [255, 255, 255];
    };
    const found = [];
    for (const node of document.querySelectorAll('main *, header *, footer')) {
        const own = [...node.childNodes].some((c) => c.nodeType === 3 && c.textContent.trim());
        if (!own || !node.getClientRects().length) continue;
        const style = getComputedStyle(node);
        const ink = parse(node instanceof SVGElement ? style.fill : style.color).slice(0, 3);
        const [a, b] = [luminance(ink), luminance(behind(node))].sort((x, y) => y - x);
        if (node.disabled) continue;
        found.push([(a + 0.05) / (b + 0.05), node.tagName + ' ' + node.textContent.slice(0, 30)]);
    }
    return found.sort((x, y) => x[0] - y[0]).slice(0, 3);
}"""


def check_contrast(page: Page) -> None:
    """Contrast of at least 4.5 to 1: WCAG 2.2, criterion 1.4.3."""
    worst = page.evaluate(_CONTRAST)
    assert worst[0][0] >= 4.5, worst


def check_width(page: Page, width: int) -> None:
    """Nothing is wider than the window."""
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    panels = page.locator(".panel")
    for n in range(panels.count()):
        box = panels.nth(n).bounding_box()
        assert box
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width + 1
