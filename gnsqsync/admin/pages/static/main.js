// Renews the part of a page that is marked data-live every two seconds, while the page is visible.
// Without this script a reload does the same.
"use strict";

(function () {
  const EVERY = 2000;

  function replace(old, fresh) {
    if (old.innerHTML === fresh.innerHTML) return;
    const focused = document.activeElement;
    // A text that the visitor types or has selected is not replaced.
    if (old.contains(focused) && /^(INPUT|SELECT|TEXTAREA)$/.test(focused.tagName)) return;
    const selection = document.getSelection();
    if (selection && !selection.isCollapsed && old.contains(selection.anchorNode)) return;
    const href = old.contains(focused) ? focused.getAttribute("href") : null;
    const scrolled = Array.from(old.querySelectorAll(".wide"), (each) => each.scrollLeft);
    old.innerHTML = fresh.innerHTML;
    old.querySelectorAll(".wide").forEach((each, n) => { each.scrollLeft = scrolled[n] || 0; });
    if (href) {
      const again = Array.from(old.querySelectorAll("a")).find((a) => a.getAttribute("href") === href);
      if (again) again.focus();
    }
  }

  async function look() {
    const live = document.getElementById("live");
    if (live && !document.hidden) {
      try {
        const answer = await fetch(location.href, { headers: { Accept: "text/html" }, cache: "no-store" });
        if (answer.ok) {
          const page = new DOMParser().parseFromString(await answer.text(), "text/html");
          const fresh = page.getElementById("live");
          if (fresh) replace(live, fresh);
          live.classList.remove("stale");
        } else {
          live.classList.add("stale");
        }
      } catch {
        live.classList.add("stale");
      }
    }
    setTimeout(look, EVERY);
  }

  if (document.querySelector("[data-live]")) setTimeout(look, EVERY);
})();
