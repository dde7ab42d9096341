// Elements, and text that cannot play tricks. All text reaches the page as text nodes.

export const byId = (id) => document.getElementById(id);

export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// Controls, bidirectional overrides, invisible and unpaired characters would hide or reorder text.
const UNSEEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]|\p{Cs}/gu;

const escaped = (character) =>
  "\u27e8" + character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0") + "\u27e9";

export const visible = (text) => String(text).replace(UNSEEN, escaped);
