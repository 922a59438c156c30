// Elements from text. A model's strings become text nodes and attribute values, never markup.

type Child = Node | string | number | null | undefined | false;
type Attributes = Record<string, string | number | boolean | ((event: Event) => void) | null | undefined>;

const SVG = 'http://www.w3.org/2000/svg';

function fill<E extends Element>(element: E, attributes: Attributes, children: Child[]): E {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === 'function') {
      element.addEventListener(name, value);
    } else if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? '' : String(value));
    }
  }
  for (const child of children) {
    if (child !== null && child !== undefined && child !== false) {
      element.append(child instanceof Node ? child : String(child));
    }
  }
  return element;
}

export function h<K extends keyof HTMLElementTagNameMap>(tag: K, attributes: Attributes = {}, ...children: Child[]) {
  return fill(document.createElement(tag), attributes, children);
}

export function byId(id: string): HTMLElement {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no #${id}`);
  return found;
}

/** An element of a picture, as the planner drew it: for a file it writes the same as markup. */
export interface Drawing {
  tag: string;
  attributes: [string, string][];
  children: (Drawing | string)[];
}

export function draw(drawing: Drawing, within = ''): Element {
  const svg = within === 'svg' || drawing.tag === 'svg';
  const element = svg ? document.createElementNS(SVG, drawing.tag) : document.createElement(drawing.tag);
  const children = drawing.children.map((child) => (typeof child === 'string' ? child : draw(child, svg ? 'svg' : '')));
  return fill(element, Object.fromEntries(drawing.attributes), children);
}

/** Lets the parts of a picture be used, by mouse and by keyboard: each says its facts, and is clicked. */
export function usable(picture: Element, tell: (facts: string[]) => void, click: (part: SVGElement) => void): void {
  for (const svg of picture.matches('svg') ? [picture] : picture.querySelectorAll('svg[role=img]')) svg.setAttribute('role', 'group');
  for (const part of picture.querySelectorAll<SVGElement>('.part')) {
    const facts = part.querySelector('title')!.textContent.split('\n');
    const more = facts.slice(1).join(', ');
    fill(part, { tabindex: 0, role: 'button', 'aria-label': facts[0], 'aria-description': more || null }, []);
    for (const kind of ['mouseenter', 'focus']) part.addEventListener(kind, () => tell(facts));
    part.addEventListener('click', () => click(part));
    part.addEventListener('keydown', (event) => {
      if (event.key !== 'Enter' && event.key !== ' ') return;
      event.preventDefault();
      click(part);
    });
  }
}

export function folded(title: string, ...children: Child[]): HTMLDetailsElement {
  return h('details', {}, h('summary', {}, title), ...children);
}

export function download(name: string, text: string, type: string): void {
  const url = URL.createObjectURL(new Blob([text], { type }));
  h('a', { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
