/* Tooltips, keyboard navigation and zoom for the charts, and the switch between light and dark. Nothing is fetched.
   Without this script every number is still on the page. */
(() => {
  "use strict";
  const SVG = "http://www.w3.org/2000/svg";

  // ------------------------------------------------------------------------------------------------- light and dark
  const root = document.documentElement;
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  for (const button of document.querySelectorAll("button[data-theme-switch]")) {
    const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
    const tell = () => { button.textContent = dark() ? "Light" : "Dark"; };
    button.hidden = false;
    button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; tell(); });
    system.addEventListener("change", tell);
    tell();
  }

  // ------------------------------------------------------------------------------------------------------ copying
  for (const button of document.querySelectorAll("button[data-copy]")) {
    const source = document.getElementById(button.dataset.copy);
    if (!source || !navigator.clipboard) continue;
    button.hidden = false;
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(source.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(source);
      }
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }

  // ------------------------------------------------------------------- keyboard access to scrolling tables
  const reach = () => {
    for (const box of document.querySelectorAll(".scroll")) {
      const wide = box.scrollWidth > box.clientWidth + 1 || box.scrollHeight > box.clientHeight + 1;
      wide ? box.setAttribute("tabindex", "0") : box.removeAttribute("tabindex");
    }
  };
  window.addEventListener("resize", reach);
  document.addEventListener("toggle", reach, true);
  reach();

  // --------------------------------------------------------------------------------------- current section
  const links = new Map([...document.querySelectorAll(".toc a")].map((a) => [a.getAttribute("href").slice(1), a]));
  if (links.size && "IntersectionObserver" in window) {
    const seen = new Set();
    const watch = new IntersectionObserver((entries) => {
      for (const e of entries) e.isIntersecting ? seen.add(e.target.id) : seen.delete(e.target.id);
      const first = [...links.keys()].find((id) => seen.has(id));
      for (const [id, a] of links) id === first ? a.setAttribute("aria-current", "true") : a.removeAttribute("aria-current");
      const here = links.get(first), list = here?.closest("ul");
      if (list) list.scrollLeft = here.offsetLeft - (list.clientWidth - here.clientWidth) / 2;
    }, { rootMargin: "-15% 0px -60% 0px" });
    for (const id of links.keys()) { const s = document.getElementById(id); if (s) watch.observe(s); }
  }

  // ------------------------------------------------------------------------------------------------------- numbers
  const step = (low, high, count) => {
    const raw = (high - low) / count;
    if (!(raw > 0)) return 1;
    const power = 10 ** Math.floor(Math.log10(raw));
    return [1, 2, 2.5, 5, 10].map((r) => r * power)
      .reduce((a, b) => (Math.abs(Math.log(b / raw)) < Math.abs(Math.log(a / raw)) ? b : a));
  };
  const text = (value, size) => {
    if (Math.abs(value) < size * 1e-6) return "0";
    if (size < 1e-3) return String(Number(value.toPrecision(4)));
    let digits = Math.max(0, -Math.floor(Math.log10(size) + 1e-9));
    if (Math.abs(size * 10 ** digits - Math.round(size * 10 ** digits)) > 1e-6) digits += 1;
    return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }).replace("-", "−");
  };

  // -------------------------------------------------------------------------------------------------------- charts
  class Chart {
    constructor(figure) {
      this.stage = figure.querySelector(".stage");
      this.canvas = figure.querySelector("svg.canvas");
      this.points = [...this.canvas.querySelectorAll(".pt")];
      if (!this.points.length) return;
      for (const point of this.points) point.querySelector("title")?.remove(); // replaced by the tooltip below
      figure.classList.add("live");
      this.lit = null;
      this.tip = this.stage.appendChild(document.createElement("div"));
      this.tip.className = "tip";
      this.tip.hidden = true;
      this.said = this.stage.appendChild(document.createElement("div"));
      this.said.className = "hidden";
      this.said.setAttribute("aria-live", "polite");
      this.stage.tabIndex = 0;
      this.stage.setAttribute("role", "application");
      const title = figure.querySelector("figcaption")?.textContent ?? "Chart";
      const zoom = this.canvas.dataset.zoom ? ", plus and minus zoom, Escape resets" : "";
      this.stage.setAttribute("aria-label", `${title}. Arrow keys read the values${zoom}.`);
      this.canvas.setAttribute("aria-hidden", "true"); // the label and the table repeat its description
      if (this.canvas.dataset.zoom) this.prepareZoom();
      this.stage.addEventListener("pointermove", (e) => this.hover(e));
      this.stage.addEventListener("pointerleave", () => this.light(null));
      this.stage.addEventListener("blur", () => this.light(null));
      this.stage.addEventListener("keydown", (e) => this.key(e));
    }

    // ---- values under the pointer
    hover(event) {
      if (this.start !== undefined) return;
      const direct = event.target.closest?.(".pt");
      this.light(direct ?? this.nearest(event.clientX, event.clientY), event.pointerType !== "mouse");
    }

    nearest(x, y) {
      let best = null, least = 40 ** 2;
      for (const point of this.points) {
        if (!point.dataset.cx) continue;
        const box = point.getBoundingClientRect();
        const far = (box.x + box.width / 2 - x) ** 2 * 4 + (box.y + box.height / 2 - y) ** 2 / 4;
        if (far < least) { best = point; least = far; }
      }
      return best;
    }

    light(point, aloud = false) {
      if (point === this.lit) return;
      this.lit?.classList.remove("lit");
      this.lit = point;
      this.tip.hidden = !point;
      if (!point) return;
      point.classList.add("lit");
      this.tip.textContent = point.dataset.tip;
      if (aloud) this.said.textContent = point.dataset.tip;
      const stage = this.stage.getBoundingClientRect(), box = point.getBoundingClientRect();
      const wide = this.tip.offsetWidth, high = this.tip.offsetHeight;
      const x = Math.min(Math.max(box.x + box.width / 2 - stage.x - wide / 2, 0), Math.max(stage.width - wide, 0));
      const above = box.y - stage.y - high - 7;
      this.tip.style.left = `${x}px`;
      this.tip.style.top = `${above > -high ? above : box.bottom - stage.y + 7}px`;
    }

    key(event) {
      const at = this.points.indexOf(this.lit), last = this.points.length - 1;
      const moves = {
        ArrowRight: at + 1, ArrowLeft: at < 0 ? last : at - 1, ArrowDown: at + 1, ArrowUp: at < 0 ? last : at - 1,
        Home: 0, End: last,
      };
      if (event.key in moves && !event.ctrlKey && !event.metaKey && !event.altKey) {
        this.light(this.points[Math.min(Math.max(moves[event.key], 0), last)], true);
      } else if (event.key === "Escape") {
        this.light(null);
        this.reset?.();
      } else if (this.zoom && (event.key === "+" || event.key === "=" || event.key === "-")) {
        const middle = this.lit?.dataset.cx ? Number(this.lit.dataset.cx) : (this.from + this.to) / 2;
        this.scale(middle, event.key === "-" ? 1.5 : 1 / 1.5);
      } else return;
      event.preventDefault();
    }

    // ---- zoom: the plotting area is a nested SVG, and its viewBox is the visible part
    prepareZoom() {
      const [low, high, first, last, left, top, wide, tall] = this.canvas.dataset.zoom.split(" ").map(Number);
      this.zoom = { low, high, first, last, left, top, wide, tall };
      this.area = this.canvas.querySelector("svg.plot-area");
      this.ticks = this.canvas.querySelector(".ticks-x");
      this.original = this.ticks.innerHTML;
      this.pinned = [...this.area.querySelectorAll("[data-cx]")];
      this.from = 0;
      this.to = wide;
      this.button = this.stage.appendChild(document.createElement("button"));
      this.button.type = "button";
      this.button.className = "unzoom";
      this.button.textContent = "Reset zoom";
      this.button.hidden = true;
      this.button.addEventListener("click", () => this.reset());
      this.stage.addEventListener("dblclick", () => this.reset());
      this.stage.addEventListener("pointerdown", (e) => this.press(e));
      this.stage.addEventListener("pointermove", (e) => this.drag(e));
      this.stage.addEventListener("pointerup", (e) => this.release(e));
      this.stage.addEventListener("pointercancel", () => this.forget());
      this.stage.addEventListener("wheel", (e) => {
        // Without a modifier key the wheel scrolls the page, unless the chart has the focus.
        if (!e.ctrlKey && !e.shiftKey && document.activeElement !== this.stage) return;
        e.preventDefault();
        this.scale(this.place(e.clientX), (e.deltaY || e.deltaX) > 0 ? 1.25 : 0.8);
      }, { passive: false });
    }

    place(x) { // from screen to plotting-area coordinates
      const box = this.canvas.getBoundingClientRect(), z = this.zoom;
      const inside = ((x - box.x) / box.width) * this.canvas.viewBox.baseVal.width - z.left;
      return this.from + (Math.min(Math.max(inside, 0), z.wide) / z.wide) * (this.to - this.from);
    }

    scale(middle, factor) {
      this.show(middle - (middle - this.from) * factor, middle + (this.to - middle) * factor);
    }

    show(from, to) {
      const z = this.zoom;
      from = Math.max(from, 0);
      to = Math.min(to, z.wide);
      if (to - from < z.wide / 2000) return;
      this.from = from;
      this.to = to;
      const k = (to - from) / z.wide, whole = k > 0.999;
      this.area.setAttribute("viewBox", `${from} 0 ${to - from} ${z.tall}`);
      for (const p of this.pinned) p.setAttribute("transform", `translate(${p.dataset.cx} ${p.dataset.cy}) scale(${k} 1)`);
      this.button.hidden = whole;
      this.light(null);
      if (whole) { this.ticks.innerHTML = this.original; return; }
      const value = (place) => z.low + ((place - z.first) / (z.last - z.first)) * (z.high - z.low);
      const low = value(from), high = value(to), size = step(low, high, 5);
      this.ticks.replaceChildren();
      for (let i = Math.ceil(low / size - 1e-9); i * size <= high + size * 1e-9; i += 1) {
        const at = z.first + ((i * size - z.low) / (z.high - z.low)) * (z.last - z.first);
        const tick = this.ticks.appendChild(document.createElementNS(SVG, "text"));
        tick.setAttribute("class", "tick");
        tick.setAttribute("x", z.left + ((at - from) / (to - from)) * z.wide);
        tick.setAttribute("y", z.top + z.tall + 17);
        tick.setAttribute("text-anchor", "middle");
        tick.textContent = text(i * size, size);
      }
    }

    reset() { this.show(0, this.zoom?.wide ?? 0); }

    press(event) {
      if (event.button !== 0 || event.target.closest("button")) return;
      this.start = event.clientX;
      this.stage.setPointerCapture?.(event.pointerId);
    }

    drag(event) {
      if (this.start === undefined || Math.abs(event.clientX - this.start) < 5) return;
      this.light(null);
      const stage = this.stage.getBoundingClientRect(), box = this.canvas.getBoundingClientRect();
      const unit = box.height / this.canvas.viewBox.baseVal.height;
      if (!this.rubber) {
        this.rubber = this.stage.appendChild(document.createElement("div"));
        this.rubber.className = "rubber";
      }
      Object.assign(this.rubber.style, {
        left: `${Math.min(event.clientX, this.start) - stage.x}px`, width: `${Math.abs(event.clientX - this.start)}px`,
        top: `${this.zoom.top * unit}px`, height: `${this.zoom.tall * unit}px`,
      });
    }

    release(event) {
      const start = this.start;
      this.forget();
      if (start === undefined || Math.abs(event.clientX - start) < 8) return;
      const [a, b] = [this.place(start), this.place(event.clientX)].sort((p, q) => p - q);
      this.show(a, b);
    }

    forget() {
      this.start = undefined;
      this.rubber?.remove();
      this.rubber = undefined;
    }
  }
  for (const figure of document.querySelectorAll("figure.chart")) new Chart(figure);
})();
