// Shows the events of /watch/TOPIC/events. Bodies are set as text, so scripts in them do not run.
"use strict";

(function () {
  const MOST = 100;
  const box = document.getElementById("watch");
  if (!box) return;
  const state = document.getElementById("state");
  const notices = document.getElementById("notices");
  const list = document.getElementById("messages");
  const hold = document.getElementById("hold");
  let sample = 100, seen = 0, passed = 0, said = "", source = null;

  function add(parent, name, text, className) {
    const element = document.createElement(name);
    element.textContent = text;
    if (className) element.className = className;
    parent.append(element, " ");
    return element;
  }

  function say(text) {
    // A screen reader reads each change of the text, so an equal text is not set again.
    if (text !== said) state.textContent = said = text;
  }

  function tell() {
    const parts = [source ? "Watching" : "On hold", `${(seen + passed).toLocaleString()} messages came`];
    if (passed) parts.push(`${passed.toLocaleString()} of them are not shown`);
    if (sample < 100) parts.push(`nsqd sends ${sample} % of the topic's`);
    say(parts.join("; ") + ".");
  }

  function show(message) {
    const item = document.createElement("li");
    const head = add(item, "p", "", "head");
    add(head, "time", new Date(message.at).toLocaleString([], { timeZoneName: "short" }));
    add(head, "span", message.kind, "tag");
    add(head, "span", `${message.size.toLocaleString()} bytes`);
    if (message.attempts > 1) add(head, "span", `attempt ${message.attempts}`, "tag level2");
    add(head, "span", message.nsqd, "dim");
    add(head, "code", message.id, "dim");
    if (message.headers) add(item, "pre", message.headers, "dim");
    add(item, "pre", message.text);
    if (message.is_cut) add(item, "p", "Only the beginning is shown.", "dim");
    list.prepend(item);
  }

  function notice(text) {
    add(notices, "li", text);
    while (notices.children.length > 10) notices.firstElementChild.remove();
  }

  function stop() {
    if (source) source.close();
    source = null;
    hold.textContent = "Go on";
    hold.setAttribute("aria-pressed", "true");
  }

  function start() {
    hold.textContent = "Hold";
    hold.setAttribute("aria-pressed", "false");
    say("Connecting");
    source = new EventSource(box.dataset.events);
    source.addEventListener("began", (event) => {
      sample = JSON.parse(event.data).sample;
      notices.replaceChildren();
      tell();
    });
    source.addEventListener("messages", (event) => {
      const data = JSON.parse(event.data);
      seen += data.messages.length;
      passed += data.passed;
      data.messages.forEach(show);
      while (list.children.length > MOST) list.lastElementChild.remove();
      tell();
    });
    source.addEventListener("notice", (event) => notice(JSON.parse(event.data)));
    source.addEventListener("end", (event) => {
      stop();
      say(JSON.parse(event.data));
    });
    source.onerror = () => {
      // The browser reconnects by itself, except after an answer that refuses.
      if (source && source.readyState === EventSource.CLOSED) {
        stop();
        say("nsqadmin refuses this watch. Load the page again.");
      } else if (source) {
        say("nsqadmin does not answer. Trying again.");
      }
    };
  }

  hold.addEventListener("click", () => {
    if (source) { stop(); tell(); } else { start(); }
  });
  document.getElementById("clear").addEventListener("click", () => list.replaceChildren());
  box.hidden = false;
  start();
})();
