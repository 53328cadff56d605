// The page of a giaann_dask server: asks /v1/completions for a stream and shows it. Nothing is loaded from elsewhere.
"use strict";

const CANDIDATES = 8;
const COLUMNS = 12;
const CONNECTIONS = 5; // traced for a token, of a network with an index
const find = (id) => document.getElementById(id);

let running = null; // AbortController of the request under way
let tokens = []; // what the server told of each token
let traced = false; // whether the network has an index of its sentences
let followed = true; // whether the newest token is shown, until another is chosen

function headers() {
  const key = find("key").value;
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

async function introduce() {
  try {
    const response = await fetch("/v1/models", { headers: headers() });
    if (!response.ok) return say(await refused(response), true);
    const model = (await response.json()).data[0];
    traced = model.traced;
    find("network").textContent = `network ${model.id}, commit ${model.commit}`;
  } catch {
    say("the server does not answer", true);
  }
}

async function continuePrompt(event) {
  event.preventDefault();
  if (running) return;
  const prompt = find("prompt").value;
  tokens = [];
  followed = true;
  find("given").textContent = prompt;
  find("tokens-out").replaceChildren();
  find("details").hidden = true;
  running = new AbortController();
  find("go").disabled = true;
  find("stop").disabled = false;
  say("Continuing…");
  try {
    const response = await fetch("/v1/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json", ...headers() },
      body: JSON.stringify({
        prompt, stream: true, max_tokens: Number(find("tokens").value), candidates: CANDIDATES, columns: COLUMNS,
        ...(traced ? { connections: CONNECTIONS } : {}),
      }),
      signal: running.signal,
    });
    if (!response.ok) return say(await refused(response), true);
    if (!find("network").textContent) introduce();
    say(await follow(response.body));
  } catch (error) {
    const stopped = error.name === "AbortError";
    say(stopped ? `Stopped after ${tokens.length} tokens.` : error.message, !stopped);
  } finally {
    running = null;
    find("go").disabled = false;
    find("stop").disabled = true;
  }
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
      choice.giaann.tokens.forEach((token) => add(token, choice.giaann.subwords));
      if (choice.finish_reason) {
        const why = choice.giaann.stop ? `The network knows no more: ${choice.giaann.stop}.` : "";
        ending = `${tokens.length} ${tokens.length === 1 ? "token" : "tokens"}. ${why}`;
      }
    }
  }
}

// Subwords hold the space before them, if there is one.
function add(token, subwords) {
  const place = tokens.push(token) - 1;
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = subwords ? token.text.trim() || token.text : token.text;
  button.addEventListener("click", () => {
    followed = false;
    show(place);
    trace(place);
  });
  find("tokens-out").append(subwords && !token.word.startsWith(" ") ? "" : " ", button);
  if (followed) show(place);
}

function show(place) {
  const token = tokens[place];
  find("details").hidden = false;
  find("tokens-out").querySelectorAll("button").forEach((button, index) => {
    button.setAttribute("aria-pressed", String(index === place));
  });
  document.querySelectorAll(".word").forEach((each) => { each.textContent = token.text; });
  const shown = token.candidates.length;
  find("candidates-note").textContent = shown < token.candidate_count
    ? `The best ${shown} of ${token.candidate_count}.` : `All ${token.candidate_count}.`;
  const strongest = Math.max(...token.candidates.map((each) => each.value));
  find("candidates").replaceChildren(...token.candidates.map((each) => {
    const line = row([each.text, each.column_text], each.value, strongest);
    if (each.word === token.word && each.column === token.column) line.className = "chosen";
    return line;
  }));
  find("sentences-section").hidden = true;
  find("columns-section").hidden = !token.columns.length; // an engine may not know them
  const brightest = Math.max(...token.columns.map((each) => each.activation));
  find("columns").replaceChildren(...token.columns.map((each) => row([each.text], each.activation, brightest)));
}

// Asks for the training sentences behind a token, once, and shows them.
async function trace(place) {
  const token = tokens[place];
  const reasons = (token.connections || []).filter((each) => each.connection);
  if (!reasons.length) return;
  if (!token.sentences) {
    try {
      const response = await fetch("/v1/sentences", {
        method: "POST",
        headers: { "Content-Type": "application/json", ...headers() },
        body: JSON.stringify({ connections: reasons.map((each) => each.connection) }),
      });
      if (!response.ok) return say(await refused(response), true);
      token.sentences = (await response.json()).data;
    } catch (error) {
      return say(error.message, true);
    }
  }
  if (tokens[place] !== token || find("tokens-out").querySelectorAll("button")[place]?.ariaPressed !== "true") return;
  find("sentences-section").hidden = false;
  find("sentences").replaceChildren(...token.sentences.flatMap((found, index) => {
    const { text, column_text: column } = reasons[index];
    const title = document.createElement("dt");
    const count = found.sequences === 1 ? "1 sentence" : `${found.sequences.toLocaleString("en")} sentences`;
    title.textContent = `${text}${column ? ` [${column}]` : ""}: ${count}`;
    return [title, ...found.sentences.map(sentence)];
  }));
}

function sentence(found) {
  const line = document.createElement("dd");
  const share = document.createElement("span");
  share.className = "share";
  share.textContent = `${(100 * found.share).toPrecision(3)} %`;
  const where = document.createElement("span");
  where.className = "help";
  where.title = found.place;
  const offset = found.offset === null ? "" : `, character ${found.offset.toLocaleString("en")}`;
  where.textContent = ` ${found.place.split("/").pop()}${offset}`;
  line.append(share, ` ${found.text ?? found.missing}`, where);
  return line;
}

function row(texts, value, largest) {
  const line = document.createElement("tr");
  for (const text of texts) {
    const cell = document.createElement("td");
    cell.textContent = text;
    line.append(cell);
  }
  const cell = document.createElement("td");
  cell.className = "strength";
  const bar = document.createElement("span");
  bar.className = "bar";
  bar.style.width = `${largest > 0 ? Math.max(0, (100 * value) / largest) : 0}%`;
  const figure = document.createElement("span");
  figure.className = "figure";
  figure.textContent = value.toPrecision(4);
  cell.append(bar, figure);
  line.append(cell);
  return line;
}

find("form").addEventListener("submit", continuePrompt);
find("stop").addEventListener("click", () => running?.abort());
find("key").addEventListener("change", introduce);
find("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) find("form").requestSubmit();
});
introduce();
