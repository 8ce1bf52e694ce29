"use strict";

const announcement = document.getElementById("announcement");

function select(source) {
  for (let parent = source.closest("details"); parent; parent = parent.parentElement.closest("details")) {
    parent.open = true;
  }
  if (source instanceof HTMLTextAreaElement) {
    source.focus();
    source.select();
  } else {
    getSelection().selectAllChildren(source);
  }
  announcement.textContent = "Selected: press Ctrl+C to copy.";
}

// A page opened from a file may be denied the clipboard: then the text is selected instead.
async function copy(source) {
  try {
    await navigator.clipboard.writeText(source.value ?? source.textContent);
    announcement.textContent = "Copied.";
  } catch {
    select(source);
  }
}

function openTarget() {
  const target = document.getElementById(location.hash.slice(1));
  if (target instanceof HTMLDetailsElement) target.open = true;
}

for (const button of document.querySelectorAll("button[data-copy]")) {
  button.hidden = false;
  button.addEventListener("click", () => copy(document.getElementById(button.dataset.copy)));
}
addEventListener("hashchange", openTarget);
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details[data-failing]")) details.open = true;
});
openTarget();
