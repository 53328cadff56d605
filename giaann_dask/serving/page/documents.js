// The documents of a writable network: lists, adds and forgets them by /v1/documents, and shows certificates.
"use strict";

const DOCUMENTS = "/v1/documents";
const DIGEST_MS = 500; // between two looks whether the digest of a certificate is computed
const DIGESTS = 240; // looks at most

let interrupted = null; // makes the change again that waits for the write key
let changing = false; // whether a change is under way
const counted = (number, noun = "") => `${number.toLocaleString("en")}${noun && ` ${noun}${number === 1 ? "" : "s"}`}`;
const addressOf = (id) => `${DOCUMENTS}/${encodeURIComponent(id)}`;

function tell(message, wrong = false) {
  find("library-status").textContent = message;
  find("library-status").classList.toggle("wrong", wrong);
}

function showLibrary() {
  if (!find("library").hidden) return;
  find("library").hidden = false;
  document.body.classList.add("library");
  list();
}

// Shows documents in the order of their ids, those after one below the others.
async function list(after = "") {
  const response = await fetch(`${DOCUMENTS}?after=${encodeURIComponent(after)}`, { headers: headers() });
  if (!response.ok) return tell(await refused(response), true);
  const { data, has_more: more } = await response.json();
  if (!after) find("documents").replaceChildren();
  find("documents").append(...data.map(line));
  find("more").hidden = !more;
  if (!after && !data.length) tell("None yet. Paste one, or choose files.");
}

function line(found) {
  const item = document.createElement("li");
  item.dataset.id = found.id;
  const name = button("name", found.id, () => openDocument(found.id));
  name.ariaExpanded = "false";
  const forget = button("forget", "Forget", () => {
    const place = [...find("documents").children].indexOf(item);
    if (forget.classList.contains("sure")) return change(() => remove(found.id), place);
    forget.classList.add("sure");
    forget.textContent = "For good?";
  });
  forget.setAttribute("aria-label", `Forget ${found.id}`);
  forget.addEventListener("blur", () => {
    forget.classList.remove("sure");
    forget.textContent = "Forget";
  });
  const row = span("line", "");
  row.append(name, forget);
  item.append(row, span("help", counted(found.characters, "character")));
  return item;
}

function button(kind, text, pressed) {
  const made = document.createElement("button");
  made.type = "button";
  made.className = kind;
  made.textContent = text;
  made.addEventListener("click", pressed);
  return made;
}

// Shows the text of a document in the list, or hides it.
async function openDocument(id) {
  const item = [...find("documents").children].find((each) => each.dataset.id === id);
  if (!item) return tell(`${id} is further below, or has been forgotten.`);
  const name = item.querySelector(".name");
  item.querySelector("p")?.remove();
  name.ariaExpanded = String(name.ariaExpanded !== "true");
  if (name.ariaExpanded === "false") return undefined;
  const response = await fetch(addressOf(id), { headers: headers() });
  if (!response.ok) return tell(await refused(response), true);
  const text = document.createElement("p");
  text.textContent = (await response.json()).text ?? "Its text is not kept.";
  item.append(text);
  item.scrollIntoView({ block: "nearest" });
  return name.focus();
}

// Moves the focus to the document at a place of the list or the last one, as the button that had it is gone.
function focusAt(place) {
  const names = find("documents").querySelectorAll(".name");
  (names[Math.min(place, names.length - 1)] ?? find("document-text")).focus();
}

// Makes a change, which is repeated when the write key has been given; after it the focus is at a place.
async function change(make, place = null) {
  if (changing) return undefined;
  changing = true;
  tell("Working…");
  try {
    const response = await make();
    if (response.status === 401) {
      const from = document.activeElement;
      interrupted = () => { from.focus(); change(make, place); };
      find("unlock").hidden = false;
      find("write-key").focus();
      return tell(sessionStorage.getItem(WRITE_KEY) ? "The key is wrong." : "Changes need the write key.", true);
    }
    if (!response.ok) return tell(await refused(response), true);
    const said = await response.done();
    await Promise.all([list(), introduce()]);
    if (place !== null && document.activeElement === document.body) focusAt(place);
    tell(said);
    return outdated(said);
  } catch (error) {
    return tell(error.message, true);
  } finally {
    changing = false;
  }
}

// Sends a request of a writer; `done` is called with the response's JSON, and returns what to say.
async function write(address, options, done) {
  const key = sessionStorage.getItem(WRITE_KEY);
  const authorization = key ? { Authorization: `Bearer ${key}` } : {};
  const response = await fetch(address, { ...options, headers: { ...options.headers, ...authorization } });
  response.done = async () => done(await response.json());
  return response;
}

function learn(documents, done) {
  const body = documents.map((each) => JSON.stringify(each)).join("\n");
  const headers = { "Content-Type": "application/x-ndjson" };
  return write(DOCUMENTS, { method: "POST", headers, body }, ({ data }) => {
    done();
    const [first] = data;
    if (data.some((each) => each.id === find("forgotten").textContent)) find("proof").hidden = true;
    return data.length === 1 ? `${first.id} is learned.` : `${counted(data.length)} documents are learned.`;
  });
}

async function remove(id) {
  const address = addressOf(id) + (find("purge").checked ? "?purge=true" : "");
  const done = ({ certificate }) => {
    if (certificate) certify(id, certificate);
    return certificate ? `${id} is forgotten.` : `${id} is removed; another document has the same text, which stays.`;
  };
  const response = await write(address, { method: "DELETE" }, done);
  // A server that keeps no texts needs that of the document.
  const text = find("document-text").value;
  if (response.status !== 400 || !text) return response;
  const headers = { "Content-Type": "application/json" };
  return write(address, { method: "DELETE", headers, body: JSON.stringify({ text }) }, done);
}

// Shows a certificate, and its digest when the server has computed it.
async function certify(id, certificate) {
  find("proof").hidden = false;
  find("forgotten").textContent = id;
  find("certificate").textContent = JSON.stringify(certificate, null, 2);
  const running = certificate.purge === "running";
  const removed = certificate.purged_commits ? `, ${counted(certificate.purged_commits, "earlier commit")} removed` : "";
  const purged = running ? ", earlier commits are removed…" : removed;
  const facts = {
    "Subtracted": `${counted(certificate.sequences, "sentence")}, ${counted(certificate.tokens, "token")}`,
    "Connections": `${counted(certificate.connections_before)} before, ${counted(certificate.connections)} now`,
    "Commit": `${certificate.commit_before} before, ${certificate.commit} now${purged}`,
    "Digest of the network, which equals one that never read it": certificate.digest || "is computed…",
  };
  find("facts").replaceChildren(...Object.entries(facts).flatMap(([term, value]) => {
    const [title, text] = [document.createElement("dt"), document.createElement("dd")];
    [title.textContent, text.textContent] = [term, value];
    return [title, text];
  }));
  for (let look = 0; look < DIGESTS && (running || !certificate.digest) && find("forgotten").textContent === id; look += 1) {
    await new Promise((resolve) => { setTimeout(resolve, DIGEST_MS); });
    const response = await fetch(`${addressOf(id)}/certificate`, { headers: headers() });
    const found = response.ok ? await response.json() : {};
    if (found.commit_before !== certificate.commit_before) continue;
    if (found.digest || found.purge !== certificate.purge) return certify(id, found);
  }
  return undefined;
}

find("add").addEventListener("submit", (event) => {
  event.preventDefault();
  const [text, id] = [find("document-text").value, find("document-id").value.trim()];
  change(() => learn([{ text, ...(id ? { id } : {}) }], () => find("add").reset()));
});
find("files").addEventListener("change", async () => {
  const files = [...find("files").files];
  const documents = await Promise.all(files.map(async (file) => ({ id: file.name, text: await file.text() })));
  if (documents.length) change(() => learn(documents, () => { find("files").value = ""; }));
});
find("unlock").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(WRITE_KEY, find("write-key").value.trim());
  find("write-key").value = "";
  find("unlock").hidden = true;
  const again = interrupted;
  interrupted = null;
  again?.();
});
find("more").addEventListener("click", () => list(find("documents").lastElementChild.dataset.id));

// The link of a notebook has the write key, which the address then loses.
if (location.hash.startsWith("#key=")) {
  sessionStorage.setItem(WRITE_KEY, decodeURIComponent(location.hash.slice("#key=".length)));
  history.replaceState(null, "", location.pathname);
}
introduce();
