// Keeps the page up to date, and sends its forms without leaving it.
//
// There is one page, rendered by the server. This script fetches it again and
// takes over what has changed: regions marked data-live as they stand, regions
// marked data-list child by child (a form somebody types in is left alone), and
// regions marked data-reply only from the reply to a form. Without this script
// every form still works.

const EVERY_MS = 800;

// What the server sent last for each region; the page's own may be decorated since.
const sent = new Map();
let epoch = 0;

function remember(doc) {
  for (const region of doc.querySelectorAll("[data-live], [data-reply], [data-list] > *")) {
    sent.set(region.id, region.outerHTML);
  }
}

// Whether somebody is in the middle of filling in a form.
function isTouched(element) {
  const active = document.activeElement;
  if (element.contains(active) && active.matches("textarea, input")) return true;
  return [...element.querySelectorAll("textarea, input:not([type=hidden])")].some((field) =>
    field.type === "radio" ? field.checked !== field.defaultChecked : field.value !== field.defaultValue);
}

function replace(mine, fresh) {
  if (sent.get(mine.id) === fresh.outerHTML) return;
  sent.set(mine.id, fresh.outerHTML);
  mine.replaceWith(document.adoptNode(fresh));
  decorate(document.getElementById(fresh.id));
}

function mergeList(mine, fresh) {
  const atEnd = mine.scrollHeight - mine.scrollTop - mine.clientHeight < 80;
  const news = new Map([...fresh.children].map((child) => [child.id, child]));
  for (const child of [...mine.children]) {
    if (news.has(child.id)) continue;
    if (isTouched(child)) {
      child.classList.add("stale");
    } else {
      child.remove();
      sent.delete(child.id);
    }
  }
  let changed = false;
  for (const [id, child] of news) {
    const old = document.getElementById(id);
    if (!old) {
      sent.set(id, child.outerHTML);
      mine.append(document.adoptNode(child));
      decorate(child);
      changed = true;
    } else if (sent.get(id) !== child.outerHTML) {
      replace(old, child);
      changed = true;
    }
  }
  if (changed && atEnd) mine.scrollTop = mine.scrollHeight;
}

function apply(doc, isReply) {
  for (const fresh of doc.querySelectorAll("[data-live], [data-reply], [data-list]")) {
    const mine = document.getElementById(fresh.id);
    if (!mine) continue;
    if (fresh.hasAttribute("data-list")) mergeList(mine, fresh);
    else if (isReply || fresh.hasAttribute("data-live")) replace(mine, fresh);
  }
}

// Times in the visitor's own zone.
function decorate(element) {
  for (const time of element.querySelectorAll("time")) {
    const at = new Date(time.dateTime);
    time.title = at.toLocaleString();
    time.textContent = at.toLocaleTimeString([], { hourCycle: "h23" });
  }
}

async function page(url, options) {
  const response = await fetch(url, options);
  return new DOMParser().parseFromString(await response.text(), "text/html");
}

function reached(yes) {
  const banner = document.getElementById("offline");
  if (banner) banner.hidden = yes;
}

async function look() {
  const began = epoch;
  if (!document.hidden) {
    try {
      const doc = await page(location.href);
      // A form was sent meanwhile: what this reply shows may be older than the form's.
      if (began === epoch) apply(doc, false);
      reached(true);
    } catch {
      reached(false);
    }
  }
  setTimeout(look, EVERY_MS);
}

async function send(form, submitter) {
  const body = new URLSearchParams(new FormData(form, submitter));
  const buttons = [...form.querySelectorAll("button")];
  buttons.forEach((button) => (button.disabled = true));
  epoch += 1;
  try {
    const doc = await page(form.getAttribute("action"), { method: "POST", body });
    epoch += 1;
    // A refused form keeps what was typed.
    if (!doc.querySelector("[data-kind=error]")) {
      form.reset();
      if (form.contains(document.activeElement)) document.activeElement.blur();
    }
    apply(doc, true);
    if (form.matches(".say")) form.querySelector("textarea").focus();
    reached(true);
  } catch {
    reached(false);
  }
  buttons.forEach((button) => (button.disabled = false));
}

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (!form.hasAttribute("data-fetch")) return;
  event.preventDefault();
  send(form, event.submitter);
});

// Enter sends, as in every chat; with Shift it begins a new line.
document.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  const form = event.target.closest?.(".say");
  if (!form) return;
  event.preventDefault();
  if (form.reportValidity()) form.requestSubmit();
});

remember(document);
decorate(document);
const messages = document.getElementById("messages");
if (messages) messages.scrollTop = messages.scrollHeight;
setTimeout(look, EVERY_MS);
