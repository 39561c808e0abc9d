// Elements, built one by one: no text ever becomes markup, and the page's policy forbids that, too.

const TAGS = new Set(("p blockquote ul ol li em strong s hr table thead tbody tr th td br code pre a " +
  "h1 h2 h3 h4 h5 h6").split(" "));
const ATTRIBUTES = new Set(["href", "title", "start", "tabindex"]);

/** Returns an element. `onclick` and the like are functions; `null` and `false` are left out. */
export function h(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value);
  }
  made.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

/** Returns the elements of the server's Markdown nodes. Only known tags and attributes are built. */
export function built(nodes) {
  return nodes.map((node) => {
    if (typeof node === "string") return node;
    const [tag, attributes, ...children] = node;
    if (!TAGS.has(tag)) return "";
    const known = Object.entries(attributes).filter(([name]) => ATTRIBUTES.has(name));
    const made = h(tag, Object.fromEntries(known), ...built(children));
    if (tag === "a") {
      if (!/^(https?|mailto):/i.test(made.getAttribute("href") || "")) made.removeAttribute("href");
      made.rel = "noopener noreferrer nofollow";
      made.target = "_blank";
    }
    return made;
  });
}

export function show(place, ...children) {
  place.replaceChildren(...children.flat(9).filter((child) => child));
}

export function button(name, press, attributes) {
  return h("button", { type: "button", onclick: press, ...attributes }, name);
}

/** Returns an error, which is read aloud. Without its text, it is the place of one that may come. */
export function complaint(text) {
  return h("p", { class: "error", role: "alert" }, text);
}

/** Returns a form. If `press` fails, the form says why. */
export function form(press, ...children) {
  const fault = complaint();
  const submit = (event) => {
    event.preventDefault();
    fault.textContent = "";
    return press().catch((problem) => { fault.textContent = problem.message; });
  };
  return h("form", { onsubmit: submit }, children, fault);
}

/** Returns the time since then, as text for people. */
export function ago(time) {
  const seconds = Math.max(0, (Date.now() - new Date(time)) / 1000);
  for (const [length, unit] of [[86400, "d"], [3600, "h"], [60, "min"]])
    if (seconds >= length) return `${Math.floor(seconds / length)} ${unit} ago`;
  return "just now";
}

export function base64(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return btoa(text);
}

export function written(value) {
  return seen(typeof value === "string" ? value : JSON.stringify(value, null, 2));
}

// Signs that turn, hide or strike out other text, or are invisible: as core/safe_text.py has it for decisions.
const BLANK = /(?![ \n\t])[\p{C}\p{Z}\p{Default_Ignorable_Code_Point}\u2800\u{1d159}]\p{M}*/u;
const STRIKE =
  /[\p{Me}\u0334-\u0338\u1cd4\u1ce2-\u1ce8\u20d2\u20d3\u20d8-\u20da\u20e5\u20e6\u20ea\u20eb\u{10a39}\u{16af0}-\u{16af4}\u{1bc9e}\u{1d167}-\u{1d169}]\p{M}*/u;
const MARKS = /(?<![\p{L}\p{N}\P{ASCII}])\p{M}+|(?<=\p{M}{4})\p{M}+/u;
const UNSEEN = new RegExp([BLANK, STRIKE, MARKS].map((one) => one.source).join("|"), "gu");

/** Returns a text for a decision, with hidden signs spelled out. JSON stays the same JSON. */
export function seen(text) {
  const spelled = (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`;
  return String(text).replace(UNSEEN, (found) => found.split("").map(spelled).join(""));
}
