// Small helpers for the document. Text from recordings is not trusted: it reaches the page as text nodes and attribute
// values alone, never as markup.

export type Child = Node | string | number | null | undefined | false | Child[];

export interface Attributes {
  [name: string]: string | number | boolean | null | undefined | ((event: never) => void);
}

function append(parent: Node, children: Child[]): void {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) append(parent, child);
    else parent.appendChild(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

// h("button", {class: "small", onclick: f}, "text")
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value as unknown as EventListener);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

export function fill(parent: Node, ...children: Child[]): void {
  while (parent.firstChild) parent.removeChild(parent.firstChild);
  append(parent, children);
}

export function button(text: string, action: () => void, attributes: Attributes = {}): HTMLButtonElement {
  return h("button", { type: "button", onclick: action, ...attributes }, text);
}

// A list of terms and values.
export function facts(rows: ([string, Child] | null | false)[]): HTMLElement {
  const list = h("dl", { class: "facts" });
  for (const row of rows) if (row) append(list, [h("dt", {}, row[0]), h("dd", {}, row[1])]);
  return list;
}

// Saves a text as a file. The link is local; nothing leaves the page.
export function save(name: string, text: string, type: string): void {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = h("a", { href: url, download: name });
  document.body.appendChild(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
