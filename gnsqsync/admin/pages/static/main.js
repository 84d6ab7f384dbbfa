// Renews the parts of a page that are marked data-live every two seconds, while the page is visible.
// Above a page that cannot be renewed stands the time of its figures, and why they are old.
// Without this script a reload does the same.
"use strict";

(function () {
  const EVERY = 2000;
  // Milliseconds without an answer after which a request is given up, and age of figures that is told.
  const PATIENCE = 15000;
  const OLD = 8000;

  const note = document.createElement("p");
  note.id = "old";
  note.className = "note bad";
  note.setAttribute("role", "status");
  note.hidden = true;
  let renewed = new Date();

  function parts() {
    return Array.from(document.querySelectorAll("[data-live]"));
  }

  function replace(old, fresh) {
    if (old.innerHTML === fresh.innerHTML) return true;
    // A text that the visitor has selected is not replaced.
    const selection = document.getSelection();
    if (selection && !selection.isCollapsed && old.contains(selection.anchorNode)) return false;
    const focused = document.activeElement;
    const href = old.contains(focused) ? focused.getAttribute("href") : null;
    const scrolled = Array.from(old.querySelectorAll(".wide"), (each) => each.scrollLeft);
    old.innerHTML = fresh.innerHTML;
    old.querySelectorAll(".wide").forEach((each, n) => { each.scrollLeft = scrolled[n] || 0; });
    if (href) {
      const again = Array.from(old.querySelectorAll("a")).find((a) => a.getAttribute("href") === href);
      if (again) again.focus();
    }
    return true;
  }

  // Return why the page is not renewed, or "".
  async function renew() {
    let answer, text;
    try {
      const signal = AbortSignal.timeout(PATIENCE);
      answer = await fetch(location.href, { headers: { Accept: "text/html" }, cache: "no-store", signal });
      text = await answer.text();
    } catch {
      return "nsqadmin does not answer";
    }
    const page = new DOMParser().parseFromString(text, "text/html");
    const pairs = parts().map((old) => [old, page.getElementById(old.id)]);
    if (!answer.ok || !pairs.every(([, fresh]) => fresh)) {
      const lines = Array.from(page.querySelectorAll("main .note.bad > *"), (each) => each.textContent);
      if (lines.length) return lines.join(": ");
      return answer.ok ? "another page came, such as a login; load this page again" : `the server answers ${answer.status}`;
    }
    const all = pairs.map(([old, fresh]) => replace(old, fresh));
    return all.every((each) => each) ? "" : "a text on this page is selected";
  }

  function tell(why) {
    const now = new Date();
    if (!why) renewed = now;
    const isOld = now - renewed >= OLD;
    const at = renewed.toLocaleTimeString([], { timeZoneName: "short" });
    const text = `These figures are of ${at}, and are not renewed: ${why.replace(/\.$/, "")}.`;
    // A screen reader reads each change of the text, so an equal text is not set again.
    if (isOld && note.textContent !== text) note.textContent = text;
    note.hidden = !isOld;
    parts().forEach((each) => each.classList.toggle("stale", isOld));
  }

  async function look() {
    if (!document.hidden) tell(await renew());
    setTimeout(look, EVERY);
  }

  if (!parts().length) return;
  document.getElementById("main").prepend(note);
  setTimeout(look, EVERY);
})();
