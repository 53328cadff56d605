// Shows what the chosen neuron sends, and the way by which it was reached.
const escape = (word) => String(word).replace(/[&<>"]/g, (sign) => "&#" + sign.charCodeAt(0) + ";");
const named = (at) => `<b>${escape(neurons.data.name[at])}</b> [${escape(neurons.data.column[at])}]`;
const number = (value) => value.toLocaleString("en", {maximumFractionDigits: 1});
const chosen = neurons.selected.indices;
const line = lines.data;
const count = line.source.length;
const all = Array.from({length: count}, (_, at) => at);
if (chosen.length === 0) {
  line.alpha = Array.from(line.usual);
  neurons.data.alpha = neurons.data.name.map(() => 1);
  neurons.tags = [];
  panel.text = hint;
} else {
  const at = chosen[0];
  const out = all.filter((k) => line.source[k] === at).sort((a, b) => line.strength[b] - line.strength[a]);
  const reached = new Set(out.map((k) => line.target[k]));
  reached.add(at);
  line.alpha = all.map((k) => (line.source[k] === at ? 1 : 0.05));
  neurons.data.alpha = neurons.data.name.map((_, k) => (reached.has(k) ? 1 : 0.25));
  const before = neurons.tags.length ? neurons.tags[neurons.tags.length - 1] : -1;
  // Whoever goes on to a target goes on with the way; any other neuron begins a new one.
  const goes_on = all.some((k) => line.source[k] === before && line.target[k] === at);
  neurons.tags = before === at ? neurons.tags : goes_on ? [...neurons.tags, at] : [at];
  const rows = out.map((k) => `<tr><td>${named(line.target[k])}</td><td style="text-align:right;padding:0 .8em">` +
    `${number(line.strength[k])}</td><td style="opacity:.7">${escape(line.parts[k])}</td></tr>`);
  panel.text = `<p style="margin:0 0 .6em">${neurons.tags.map(named).join(" → ")}</p>` +
    `<p style="margin:0 0 .3em">sends ${out.length} shown connection${out.length === 1 ? "" : "s"}:</p>` +
    `<table style="font-size:12px;text-align:left"><tr style="opacity:.7"><td>to</td><td style="padding:0 .8em">strength</td>` +
    `<td>segment/branch: strength</td></tr>${rows.join("")}</table>`;
}
lines.change.emit();
neurons.change.emit();
