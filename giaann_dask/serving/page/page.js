// The page of a giaann_dask server: asks /v1/completions for a stream and shows it. Nothing is loaded from elsewhere.
// What documents the network has is shown by documents.js.
"use strict";

const CANDIDATES = 8;
const COLUMNS = 12;
const WRITE_KEY = "giaann-write-key"; // in the storage of this tab, also to read
const CONNECTIONS = 5; // traced for a token, of a network with an index
// What the numbers beside candidates mean.
const ACTIVATION = "Activation of the neuron by the words so far, the strongest first. It is not a probability: compare it within a "
  + "list only.";
const PROBABILITY = "Probability of each word after the words so far, before the temperature changes it. The chosen word is first.";
const find = (id) => document.getElementById(id);
const percent = (share) => `${(100 * share).toPrecision(3)} %`;
const activation = (value) => value.toPrecision(4);

let models = []; // as /v1/models describes them
let running = null; // AbortController of the request under way
let tokens = []; // what the server told of each token
let asked = null; // the model that they are of
let followed = true; // whether the newest token is shown, until another is chosen
let sent = null; // the fields of the request that they answer, with the seed of the answer
let commit = null; // that predicted them

function headers() {
  const key = find("key").value || sessionStorage.getItem(WRITE_KEY);
  return key ? { Authorization: `Bearer ${key}` } : {};
}

function say(message, wrong = false) {
  find("status").textContent = message;
  find("status").classList.toggle("wrong", wrong);
}

async function refused(response) {
  find("key-row").hidden = find("key-row").hidden && response.status !== 401;
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server answered ${response.status}`;
  }
}

const chosen = () => models[find("model").selectedIndex];

// Asks which models there are; returns whether the server told.
async function introduce() {
  try {
    const response = await fetch("/v1/models", { headers: headers() });
    if (!response.ok) {
      say(await refused(response), true);
      return false;
    }
    models = (await response.json()).data;
  } catch {
    say("the server does not answer", true);
    return false;
  }
  if (find("model").length !== models.length) find("model").replaceChildren(...models.map((each) => new Option(each.id)));
  describe();
  say("");
  if (models[0].writable) showLibrary();
  return true;
}

// Shows the fields, limits and hints of the chosen model.
function describe() {
  const model = chosen();
  find("network").textContent = `network ${model.id}, profile ${model.profile}, commit ${model.commit}`;
  find("prompt-help").textContent =
    `${model.probabilities ? "Any words" : "Some words with at least one noun"}. Ctrl+Enter continues them.`;
  find("prompt").maxLength = model.max_prompt;
  find("tokens").max = model.max_tokens;
  find("tokens").value = Math.min(find("tokens").value, model.max_tokens);
  document.querySelectorAll(".drawing").forEach((each) => { each.hidden = !model.probabilities; });
  // A field that is not shown does not stop the form.
  ["temperature", "seed"].forEach((name) => { find(name).disabled = !model.probabilities; });
}

// Temperature and seed, of a model that has probabilities.
function drawing(model) {
  if (!model.probabilities) return {};
  const seed = find("seed").value;
  return { temperature: Number(find("temperature").value), ...(seed ? { seed: Number(seed) } : {}) };
}

function continuePrompt(event) {
  event.preventDefault();
  find("before").hidden = find("now").hidden = true;
  return ask(() => {
    const prompt = find("prompt").value;
    const model = chosen();
    return {
      model: model.id, prompt, stream: true, max_tokens: Number(find("tokens").value),
      candidates: Math.min(CANDIDATES, model.max_candidates), columns: Math.min(COLUMNS, model.max_columns),
      ...(model.traced ? { connections: Math.min(CONNECTIONS, model.max_candidates) } : {}),
      ...drawing(model),
    };
  });
}

// Asks the question of the answer that is shown again, and shows both.
async function askAgain() {
  const words = [...find("tokens-out").querySelectorAll("button")].map((each) => each.textContent);
  const former = { text: find("tokens-out").textContent, words };
  find("before").hidden = find("now").hidden = false;
  find("before-text").replaceChildren(span("given", sent.prompt), ...[...find("tokens-out").childNodes].map((each) => (
    each.nodeType === 3 ? each.data : span("former", each.textContent)
  )));
  if (!(await ask(() => sent))) return;
  const now = [...find("tokens-out").querySelectorAll("button")];
  const [first, fromEnd] = common(former.words, now.map((each) => each.textContent));
  const mark = (words) => words.slice(first, words.length - fromEnd).forEach((word) => {
    const marked = document.createElement("mark");
    word.replaceWith(marked);
    marked.append(word);
  });
  const same = former.text === find("tokens-out").textContent;
  mark(now);
  mark([...find("before-text").querySelectorAll(".former")]);
  say(`${same ? "The answer is the same." : "The answer has changed where it is marked."} ${find("status").textContent}`);
}

// How many words two lists begin with, and how many of the others they end with, in common.
function common(one, other) {
  const shorter = Math.min(one.length, other.length);
  let first = 0;
  while (first < shorter && one[first] === other[first]) first += 1;
  let last = 0;
  while (last < shorter - first && one.at(-1 - last) === other.at(-1 - last)) last += 1;
  return [first, last];
}

function span(kind, text) {
  const made = document.createElement("span");
  made.className = kind;
  made.textContent = text;
  return made;
}

// Sends the fields of a request that a function returns, and shows the answer; returns whether there is one.
async function ask(fields) {
  if (running || (!models.length && !(await introduce()))) return false;
  sent = fields();
  asked = models.find((each) => each.id === sent.model);
  tokens = [];
  followed = true;
  find("given").textContent = sent.prompt;
  find("tokens-out").replaceChildren();
  find("details").hidden = true;
  running = new AbortController();
  find("stop").disabled = false;
  // A button that can no longer be pressed, or is hidden, loses the focus.
  const pressed = ["go", "again"].map(find).includes(document.activeElement);
  if (pressed) find("stop").focus();
  find("go").disabled = find("again").disabled = true;
  find("again-row").hidden = true;
  say("Continuing…");
  try {
    const response = await fetch("/v1/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json", ...headers() },
      body: JSON.stringify(sent),
      signal: running.signal,
    });
    if (!response.ok) {
      say(await refused(response), true);
      return false;
    }
    say(await follow(response.body));
    return true;
  } catch (error) {
    const stopped = error.name === "AbortError";
    say(stopped ? `Stopped after ${tokens.length} tokens.` : error.message, !stopped);
    return false;
  } finally {
    running = null;
    find("go").disabled = find("again").disabled = false;
    if (document.activeElement === find("stop")) find("go").focus();
    find("stop").disabled = true;
  }
}

// Offers to ask again, where an answer is shown that an earlier commit gave.
function outdated(why) {
  if (!tokens.length || commit === models.find((each) => each.id === sent.model)?.commit) return;
  find("again-why").textContent = why;
  find("again-row").hidden = false;
}

// Reads server-sent events until [DONE] and returns why the continuation ended.
async function follow(body) {
  let held = "";
  let ending = "";
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Error("the answer broke off");
    held += value;
    const events = held.split("\n\n");
    held = events.pop();
    for (const event of events) {
      const data = event.slice("data: ".length);
      if (data === "[DONE]") return ending;
      const message = JSON.parse(data);
      if (message.error) throw new Error(message.error.message);
      const choice = message.choices[0];
      commit = message.system_fingerprint;
      choice.giaann.tokens.forEach((token) => add(token, choice.text, choice.giaann.subwords));
      if (choice.finish_reason) {
        if (choice.giaann.seed !== undefined) sent = { ...sent, seed: choice.giaann.seed };
        const why = choice.giaann.stop ? `The network stopped: ${choice.giaann.stop}.` : "";
        const drawn = choice.giaann.seed === undefined ? "" : `, drawn with seed ${choice.giaann.seed}`;
        ending = `${tokens.length} ${tokens.length === 1 ? "token" : "tokens"}${drawn}. ${why}`;
      }
    }
  }
}

// The text that a token adds says whether a space is before it.
function add(token, text, subwords) {
  const place = tokens.push(token) - 1;
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = subwords ? token.text.trim() || token.text : token.text;
  // A browser may not focus what is clicked.
  for (const kind of ["click", "focus"]) {
    button.addEventListener(kind, () => {
      followed = false;
      show(place);
      trace(place);
    });
  }
  find("tokens-out").append(text.startsWith(" ") ? " " : "", button);
  if (followed) show(place);
}

function show(place) {
  const token = tokens[place];
  find("details").hidden = false;
  find("tokens-out").querySelectorAll("button").forEach((button, index) => {
    button.setAttribute("aria-pressed", String(index === place));
  });
  document.querySelectorAll(".word").forEach((each) => { each.textContent = token.text; });
  const { probabilities } = asked;
  const shown = token.candidates.length;
  const all = token.candidate_count;
  const count = all === 1 ? "The only candidate" : `${shown < all ? `${shown} of` : "All"} ${all} candidates`;
  find("candidates-note").textContent = `${count}. ${probabilities ? PROBABILITY : ACTIVATION}`;
  find("column-head").hidden = probabilities; // only neurons are in columns
  find("value-head").textContent = probabilities ? "Probability" : "Activation";
  const written = probabilities ? percent : activation;
  const strongest = Math.max(...token.candidates.map((each) => each.value));
  find("candidates").replaceChildren(...token.candidates.map((each) => {
    const line = row(probabilities ? [each.text] : [each.text, each.column_text], each.value, strongest, written);
    if (each.word === token.word && each.column === token.column) line.className = "chosen";
    return line;
  }));
  find("sentences-section").hidden = !token.sentences;
  find("untraced").hidden = asked.traced;
  find("columns-section").hidden = !token.columns.length; // an engine may not know them
  const brightest = Math.max(...token.columns.map((each) => each.activation));
  find("columns").replaceChildren(...token.columns.map((each) => row([each.text], each.activation, brightest, activation)));
}

// Asks for the training sentences behind a token, once, and shows them.
async function trace(place) {
  const token = tokens[place];
  const reasons = (token.connections || []).filter((each) => each.connection);
  if (!reasons.length) return;
  try {
    token.asking ??= sentencesOf(reasons);
    token.sentences = await token.asking;
  } catch (error) {
    token.asking = null;
    return say(error.message, true);
  }
  if (find("tokens-out").querySelectorAll("button")[place]?.ariaPressed !== "true" || tokens[place] !== token) return;
  find("sentences-section").hidden = false;
  find("sentences").replaceChildren(...token.sentences.flatMap((found, index) => {
    const { text, column_text: column } = reasons[index];
    const title = document.createElement("dt");
    const count = found.sequences === 1 ? "1 sentence" : `${found.sequences.toLocaleString("en")} sentences`;
    title.textContent = `${text}${column ? ` [${column}]` : ""}: ${count}`;
    return [title, ...found.sentences.map(sentence)];
  }));
}

async function sentencesOf(reasons) {
  const response = await fetch("/v1/sentences", {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headers() },
    body: JSON.stringify({ connections: reasons.map((each) => each.connection), model: sent.model, commit }),
  });
  if (response.ok) return (await response.json()).data;
  if (response.status === 409 && (await introduce())) outdated("The network has changed since this answer.");
  throw new Error(await refused(response));
}

function sentence(found) {
  const line = document.createElement("dd");
  const offset = found.offset === null ? "" : `, character ${found.offset.toLocaleString("en")}`;
  const where = span("help", ` ${found.place.split("/").pop()}${offset}`);
  where.title = found.place;
  const named = (found.documents ?? []).map((id) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "document";
    button.textContent = id;
    button.addEventListener("click", () => openDocument(id));
    return button;
  });
  const source = named.length ? [" document ", ...named.flatMap((each, index) => (index ? [", ", each] : [each]))] : [where];
  line.append(span("share", percent(found.share)), ` ${found.text ?? found.missing}`, ...source);
  return line;
}

function row(texts, value, largest, written) {
  const line = document.createElement("tr");
  for (const text of texts) {
    const cell = document.createElement("td");
    cell.textContent = text;
    line.append(cell);
  }
  const cell = document.createElement("td");
  cell.className = "strength";
  const bar = span("bar", "");
  bar.style.width = `${largest > 0 ? Math.max(0, (100 * value) / largest) : 0}%`;
  cell.append(bar, span("figure", written(value)));
  line.append(cell);
  return line;
}

find("form").addEventListener("submit", continuePrompt);
find("again").addEventListener("click", askAgain);
find("stop").addEventListener("click", () => running?.abort());
find("key").addEventListener("change", introduce);
find("model").addEventListener("change", describe);
find("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) find("form").requestSubmit();
});
