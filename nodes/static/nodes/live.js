/* Keeps a live page alive: fetches its live part again, and counts seconds on between two answers.

   The next request goes out only after the last one was answered, none while the tab is hidden, and ever more rarely
   while requests fail. Without this script the page works by its Refresh link. */
"use strict";

(() => {
  const EVERY_MS = 2000;
  const AT_MOST_MS = 30000;
  const PATIENCE_MS = 10000;

  const part = document.getElementById("mesh-live");
  if (!part) {
    return;
  }
  const state = document.querySelector("[data-testid=live-state]");
  const spoken = document.querySelector("[data-testid=mesh-summary]");
  let failures = 0;
  let timer = null;
  let asking = false;
  let pressed = false;
  let shownAt = performance.now();

  function show(name, text) {
    state.hidden = false;
    state.dataset.live = name;
    state.textContent = text;
  }

  function say() {
    // Only what is new: a listener should not hear the same sentence every two seconds.
    const summary = part.querySelector("[data-summary]");
    if (summary && spoken.textContent !== summary.dataset.summary) {
      spoken.textContent = summary.dataset.summary;
    }
  }

  // As nodes/amounts.py writes them.
  function human(seconds) {
    if (seconds < 10) {
      return `${Math.max(seconds, 0).toFixed(1)} s`;
    }
    const whole = Math.round(seconds);
    for (const [size, unit, below, small] of [[86400, "d", 3600, "h"], [3600, "h", 60, "m"], [60, "m", 1, "s"]]) {
      if (whole >= size) {
        const rest = Math.floor((whole % size) / below);
        return rest ? `${Math.floor(whole / size)} ${unit} ${rest} ${small}` : `${Math.floor(whole / size)} ${unit}`;
      }
    }
    return `${whole} s`;
  }

  function count() {
    const passed = (performance.now() - shownAt) / 1000;
    for (const cell of part.querySelectorAll("[data-count]")) {
      const sign = cell.dataset.count === "down" ? -1 : 1;
      cell.textContent = human(Math.max(0, Number(cell.dataset.seconds) + sign * passed));
    }
  }

  function replace(html) {
    const chosen = new Set(Array.from(part.querySelectorAll("input[name=session]:checked"), (box) => box.value));
    const active = part.contains(document.activeElement) ? document.activeElement : null;
    const [id, value] = active ? [active.id, active.name === "session" ? active.value : ""] : ["", ""];
    const scrolled = Array.from(part.querySelectorAll(".results"), (box) => box.scrollLeft);
    part.innerHTML = html;
    shownAt = performance.now();
    part.querySelectorAll(".results").forEach((box, index) => {
      box.scrollLeft = scrolled[index] || 0;
    });
    for (const box of part.querySelectorAll("input[name=session]")) {
      box.checked = chosen.has(box.value);
      if (value && box.value === value) {
        box.focus({preventScroll: true});
      }
    }
    if (id && document.getElementById(id)) {
      document.getElementById(id).focus({preventScroll: true});
    }
    part.dataset.refreshes = String(Number(part.dataset.refreshes) + 1);
    say();
  }

  function later(milliseconds) {
    clearTimeout(timer);
    timer = document.hidden ? null : setTimeout(ask, milliseconds);
  }

  async function ask() {
    if (asking || document.hidden) {
      return;
    }
    asking = true;
    const patience = new AbortController();
    const bell = setTimeout(() => patience.abort(), PATIENCE_MS);
    try {
      const answer = await fetch(part.dataset.liveUrl, {credentials: "same-origin", signal: patience.signal});
      if (answer.status === 403 || (answer.ok && !answer.headers.has("X-Meshnet-Live"))) {
        show("stopped", "Signed out");
        return;
      }
      if (!answer.ok) {
        throw new Error(String(answer.status));
      }
      const html = await answer.text();
      failures = 0;
      // A click is a press and a release on the same element: it must not vanish in between.
      if (!pressed) {
        replace(html);
      }
      if (!document.hidden) {
        show("live", "Live");
      }
      later(EVERY_MS);
    } catch {
      failures += 1;
      show("retrying", "Reconnecting…");
      later(Math.min(AT_MOST_MS, EVERY_MS * 2 ** failures));
    } finally {
      clearTimeout(bell);
      asking = false;
    }
  }

  part.addEventListener("pointerdown", () => { pressed = true; });
  document.addEventListener("pointerup", () => { pressed = false; });
  document.addEventListener("pointercancel", () => { pressed = false; });
  document.addEventListener("visibilitychange", () => {
    if (state.dataset.live === "stopped") {
      return;
    }
    if (document.hidden) {
      clearTimeout(timer);
      show("paused", "Paused");
    } else if (!asking) {
      ask();
    }
  });

  say();
  setInterval(() => { if (!document.hidden) { count(); } }, 1000);
  if (document.hidden) {
    show("paused", "Paused");
  } else {
    show("live", "Live");
    later(EVERY_MS);
  }
})();
