// SPDX-License-Identifier: GPL-2.0
// Looks at each frame of a page, in both schemes. Whatever may scroll by itself, may.
const parse = (text) => { const n = text.match(/[\d.]+/g).map(Number); n[3] ??= 1; return n; };
const over = (top, low) => [0, 1, 2].map((i) => top[i] * top[3] + low[i] * (1 - top[3])).concat(1);
const part = (c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
const luminance = (c) => 0.2126 * part(c[0]) + 0.7152 * part(c[1]) + 0.0722 * part(c[2]);
function behind(view, element) {
	const layers = [];
	for (; element; element = element.parentElement)
		layers.push(parse(view.getComputedStyle(element).backgroundColor));
	return layers.reverse().reduce((low, top) => over(top, low), [255, 255, 255, 1]);
}
function contrast(view, element) {
	const back = behind(view, element);
	const ink = over(parse(view.getComputedStyle(element).color), back);
	const [dark, light] = [luminance(ink), luminance(back)].sort((a, b) => a - b);
	return (light + 0.05) / (dark + 0.05);
}
const scrolls = (view, e) => e && e.parentElement &&
	(view.getComputedStyle(e).overflowX !== "visible" || scrolls(view, e.parentElement));
function look(frame) {
	const view = frame.contentWindow, page = frame.contentDocument, found = [];
	const main = page.querySelector("article");
	if (page.documentElement.scrollWidth > view.innerWidth)
		found.push("the page is wider than the window: " + page.documentElement.scrollWidth);
	for (const element of main.querySelectorAll("*")) {
		const box = element.getBoundingClientRect();
		if (box.right > view.innerWidth + 1 && !scrolls(view, element.parentElement) &&
		    !scrolls(view, element))
			found.push("sticks out: " + element.outerHTML.slice(0, 80));
	}
	const texts = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT);
	let seen = 0;
	while (texts.nextNode()) {
		const element = texts.currentNode.parentElement, text = texts.currentNode.data.trim();
		if (!text || !element.checkVisibility() || !element.getClientRects().length ||
		    ["SCRIPT", "STYLE"].includes(element.tagName))
			continue;
		seen++;
		const ratio = contrast(view, element);
		if (ratio < 4.5)
			found.push(ratio.toFixed(2) + ": " + element.tagName + "." + element.className +
				   ": " + text.slice(0, 40));
	}
	return {seen, found: [...new Set(found)]};
}
window.onload = () => {
	const said = [];
	for (const frame of document.querySelectorAll("iframe")) {
		const still = frame.contentDocument.createElement("style");
		still.textContent = "* { transition: none !important }";
		frame.contentDocument.body.append(still);
		for (const scheme of ["default", "slate"]) {
			frame.contentDocument.body.setAttribute("data-md-color-scheme", scheme);
			said.push({page: frame.name, width: frame.width, scheme, ...look(frame)});
		}
	}
	document.getElementById("said").textContent = JSON.stringify(said);
};
