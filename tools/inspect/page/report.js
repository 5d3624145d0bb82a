'use strict';
// The page of ckpt-inspect report. It draws what stands in #data (docs/schema/report.json), loads
// nothing, and puts names into the page as text alone.
(() => {
const data = JSON.parse(document.getElementById('data').textContent);

// --- elements ---

const byId = id => document.getElementById(id);
function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key === 'class') made.className = value;
    else if (key === 'text') made.textContent = value;
    else if (key === 'style') Object.assign(made.style, value);
    else if (key.startsWith('on')) made.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== null && value !== false) {
      made.setAttribute(key, value === true ? '' : value);
    }
  }
  made.append(...children.filter(child => child !== null && child !== undefined));
  return made;
}
function drawing(name, attributes, ...children) {
  const made = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key === 'text') made.textContent = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

// --- texts ---

// Control characters, and what turns the direction of a text, as people can see them.
function shown(text) {
  return String(text).replace(
      /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g,
      char => '\\u' + char.charCodeAt(0).toString(16).padStart(4, '0'));
}
// Three digits; `most`: from where on the next unit is taken.
function scaledText(count, base, most, units) {
  let unit = -1;
  while (count >= most && unit < units.length - 1) { count /= base; ++unit; }
  return (count < 10 ? count.toFixed(2) : count < 100 ? count.toFixed(1) : count.toFixed(0)) + ' ' + units[unit];
}
const bytesText = count => count < 1024 ? count + ' B' : scaledText(count, 1024, 1023.95, ['KiB', 'MiB', 'GiB', 'TiB', 'PiB']);
const amountText = count => count < 10000 ? String(count) : scaledText(count, 1000, 999.5, ['K', 'M', 'B', 'T']);
const counted = (count, thing) => count.toLocaleString('en') + ' ' + thing + (count === 1 ? '' : 's');
function numberText(number) {
  if (number === null || number === undefined) return '–';
  if (number === 0) return '0';
  const size = Math.abs(number);
  if (size >= 1e5 || size < 1e-3) return number.toExponential(3).replace('-', number < 0 ? '−' : '-').replace('e+', 'e').replace('e-', 'e−');
  return String(Number(number.toPrecision(4))).replace('-', '−');
}
// Two digits, for axes.
const roughText = number => numberText(Number(number.toPrecision(2))).replace(/\.?0+e/, 'e');
function percentText(share) {
  if (share === 0) return '0 %';
  if (share < 0.001) return '<0.1 %';
  if (share > 0.999 && share < 1) return '>99.9 %';
  return (100 * share).toFixed(share < 0.1 || (share > 0.9 && share < 1) ? 1 : 0) + ' %';
}
const shapeText = shape => shape.length === 0 ? 'scalar' : shape.join(' × ');
const powerText = exponent => {
  if (exponent > 126) return '≥ 2^127';
  return roughText(Math.pow(2, exponent));
};
function valueText(value) {
  if (value === null) return 'None';
  if (value === true) return 'True';
  if (value === false) return 'False';
  if (typeof value === 'string') return value;
  if (typeof value === 'object') {
    if (Array.isArray(value.$tuple)) return '(' + value.$tuple.map(valueText).join(', ') + ')';
    if (typeof value.$float === 'string') return value.$float;
    if (typeof value.$int === 'string') return value.$int;
    if (Array.isArray(value)) return '[' + value.map(valueText).join(', ') + ']';
    return JSON.stringify(value);
  }
  return String(value);
}

// As it was written where that is short.
function settingText(value) {
  const text = valueText(value);
  return typeof value === 'number' && text.length > 9 ? numberText(value) : text;
}

// --- columns (docs/report.md) ---

const kAlphabet = ' !#$%\'()*+,-./0123456789:;=?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[]^_`abcdefghijklmnopqrstuvwxyz{|}~';
const kDigit = new Uint8Array(128);
for (let i = 0; i < kAlphabet.length; ++i) kDigit[kAlphabet.charCodeAt(i)] = i;
const kCodes = 76843, kLevels = Math.floor((kCodes - 2) / 2);

class Digits {
  constructor(text) { this.text = text; this.at = 0; }
  next() { return kDigit[this.text.charCodeAt(this.at++)]; }
  fixed(digits) {
    let number = 0, weight = 1;
    for (let i = 0; i < digits; ++i) { number += weight * this.next(); weight *= 90; }
    return number;
  }
  count() {
    let number = 0, weight = 1;
    for (;;) {
      const digit = this.next();
      if (digit < 45) return number + weight * digit;
      number += weight * (digit - 45);
      weight *= 45;
    }
  }
}
// NaN: there is none.
function numbersOf(column, count) {
  const numbers = new Float64Array(count).fill(NaN);
  if (!column) return numbers;
  if (Array.isArray(column)) {
    for (let i = 0; i < count; ++i) if (column[i] !== null) numbers[i] = column[i];
    return numbers;
  }
  const value = code => {
    if (code === 0) return NaN;
    if (code === 1) return 0;
    const level = (code - 2) % kLevels;
    const size = Math.exp(column.low + (column.high - column.low) * level / (kLevels - 1));
    return code - 2 >= kLevels ? -size : size;
  };
  const digits = new Digits(column.packed);
  for (let i = 0; i < count; i += 2) {
    const pair = digits.fixed(5);
    numbers[i] = value(Math.floor(pair / kCodes));
    if (i + 1 < count) numbers[i + 1] = value(pair % kCodes);
  }
  return numbers;
}
function countsOf(column) {
  if (Array.isArray(column)) return column;
  const counts = [];
  if (column.runs) {
    for (let i = 0; i < column.runs.length; i += 2) {
      for (let end = counts.length + column.runs[i + 1]; counts.length < end;) counts.push(column.runs[i]);
    }
    return counts;
  }
  const digits = new Digits(column.packed);
  while (digits.at < digits.text.length) counts.push(digits.count());
  return counts;
}
function namesOf(column, count) {
  if (Array.isArray(column)) return column;
  const digits = new Digits(column.packed), names = [];
  let before = [];
  for (let i = 0; i < count; ++i) {
    const head = digits.next();
    const shared = Math.floor(head / 9);
    let rest = head % 9;
    if (rest === 8) rest = digits.count();
    const name = before.slice(0, shared);
    for (let step = 0; step < rest; ++step) name.push(column.steps[digits.count()]);
    names.push(name.join('.'));
    before = name;
  }
  return names;
}
const kHeights = '0123456789abcdefghijklmnopqrstuvwxyz';
// {top, step, negative, middle, positive}: heights from 0 to 1, sides from large to small.
function barsAt(column, row) {
  if (Array.isArray(column)) {
    const parts = column[row].split(':');
    const heights = text => Array.from(text, char => kHeights.indexOf(char) / 35);
    return {top: Number(parts[0]), step: Number(parts[1]), negative: heights(parts[2]),
            middle: heights(parts[3])[0] || 0, positive: heights(parts[4])};
  }
  const digits = new Digits(column.packed);
  digits.at = 3 * row;
  let number = digits.fixed(3);
  const parts = [];
  for (let i = 0; i < 7; ++i) { parts.push(number % 6 / 5); number = Math.floor(number / 6); }
  parts.reverse();
  return {top: null, step: null, middle: parts[0], negative: [parts[1], parts[3], parts[5]],
          positive: [parts[2], parts[4], parts[6]]};
}
function sparse(column, count) {
  const counts = new Float64Array(count);
  column.rows.forEach((row, i) => { counts[row] = column.counts[i]; });
  return counts;
}

// --- the tensors, by row ---

const table = data.tensors, rowCount = table.count;
const rowsOfNames = countsOf(table.rows_of_names);
const names = namesOf(table.names, rowsOfNames.length);
const nameOf = new Uint32Array(rowCount), firstRow = new Uint32Array(names.length + 1);
for (let name = 0, row = 0; name < names.length; ++name) {
  firstRow[name] = row;
  for (let i = 0; i < rowsOfNames[name]; ++i) nameOf[row++] = name;
  firstRow[name + 1] = row;
}
const kindOf = countsOf(table.kind), shapeOf = countsOf(table.shape);
const groupOf = countsOf(table.group);
const kDtypeBytes = new Map([['float64', 8], ['int64', 8], ['uint64', 8], ['complex64', 8],
  ['complex128', 16], ['float32', 4], ['int32', 4], ['uint32', 4], ['complex32', 4], ['float16', 2],
  ['bfloat16', 2], ['int16', 2], ['uint16', 2]]);
const shapeElements = table.shapes.map(shape => shape.reduce((product, size) => product * size, 1));
const elementsOf = row => shapeElements[shapeOf[row]];
const dtypeOf = row => table.kinds[kindOf[row]].dtype;
const bytesOf = row => elementsOf(row) * (kDtypeBytes.get(dtypeOf(row)) || 1);
const isState = row => table.kinds[kindOf[row]].role === 'optimizer_state';
const kStateNames = new Map([['fp32_param', 'master'], ['', 'weight']]);
function stateName(kind) {
  if (kind.role === 'model') return 'weight';
  if (kind.role !== 'optimizer_state') return kind.role.replace('_state', '');
  return kStateNames.get(kind.state) && kind.state ? kStateNames.get(kind.state) : kind.state || 'state';
}
const columns = {};
for (const part of ['min', 'max', 'mean', 'std']) columns[part] = numbersOf(table[part], rowCount);
const zeros = sparse(table.zeros, rowCount), nan = sparse(table.nan, rowCount), inf = sparse(table.inf, rowCount);
const sampled = new Map(table.sampled), unread = new Set(table.unread);
const lookedAt = row => sampled.has(row) ? sampled.get(row) : unread.has(row) ? 0 : elementsOf(row);
if (table.norm) {
  columns.norm = numbersOf(table.norm, rowCount);
} else {
  columns.norm = new Float64Array(rowCount);
  for (let row = 0; row < rowCount; ++row) {
    const finite = lookedAt(row) - nan[row] - inf[row];
    columns.norm[row] = Math.sqrt(finite * (columns.mean[row] ** 2 + columns.std[row] ** 2));
  }
}
const updates = table.update_norm ? numbersOf(table.update_norm, names.length) : null;
const estimated = new Set(table.update_estimated || []);
const marksOf = new Map();
for (const [mark, rows] of Object.entries(table.marks)) {
  for (const row of rows) {
    if (!marksOf.has(row)) marksOf.set(row, []);
    marksOf.get(row).push(mark);
  }
}
const kMarks = new Map([
  ['not_finite', {tag: 'NaN or Inf', style: 'bad', text: 'hold NaN or infinity'}],
  ['all_zero', {tag: 'all zero', style: 'warn', text: 'of optimizer state are zero everywhere'}],
  ['large', {tag: 'large', style: 'bad', text: 'of optimizer state are 1000 times the median of their kind or more'}],
  ['small', {tag: 'small', style: 'warn', text: 'of optimizer state are a thousandth of the median of their kind or less'}],
]);

const tagsOf = row => (marksOf.get(row) || []).filter(mark => kMarks.has(mark));

// --- tooltips ---

const tip = byId('tip');
function showTip(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.max(8, Math.min(x + 12, innerWidth - box.width - 8)) + 'px';
  tip.style.top = (y + 18 + box.height > innerHeight ? y - box.height - 10 : y + 18) + 'px';
}
const hideTip = () => { tip.hidden = true; };
function tipped(node, text) {
  node.addEventListener('pointermove', event => showTip(text(), event.clientX, event.clientY));
  node.addEventListener('pointerleave', hideTip);
  return node;
}

// --- sections ---

const main = byId('main');
function section(id, title, lead, ...children) {
  const made = element('section', {class: 'card', id, 'aria-label': title});
  made.append(element('h2', {text: title}));
  if (lead) made.append(element('p', {class: 'lead', text: lead}));
  made.append(...children.filter(Boolean));
  main.append(made);
  byId('jump').append(element('a', {href: '#' + id, text: title}));
  return made;
}

function drawTop() {
  const checkpoint = data.checkpoint;
  const path = shown(checkpoint.path), cut = path.lastIndexOf('/', path.length - 2) + 1;
  byId('path').append(element('span', {class: 'folder', text: path.slice(0, cut)}), path.slice(cut));
  document.title = path.slice(cut) + ' – checkpoint report';
  const kind = [checkpoint.format_text];
  if (checkpoint.iteration !== undefined) kind.push('iteration ' + checkpoint.iteration);
  byId('kind').textContent = kind.join('  ·  ');
}

function passedText(passed, checked, one, many) {
  const of = passed === checked ? '' : passed.toLocaleString('en') + ' of ';
  return of + checked.toLocaleString('en') + ' ' + (checked === 1 ? one : many);
}
function checksText() {
  const {checked, passed, quick} = data.verify, texts = [];
  if (quick) return 'Structure was checked; checksums and most values were not read.';
  if (checked.checksums) texts.push(passedText(passed.checksums, checked.checksums, 'checksum right', 'checksums right'));
  if (checked.masters) texts.push(passedText(passed.masters, checked.masters, 'master rounds to its weight', 'masters round to their weights'));
  if (checked.states) texts.push(passedText(passed.states, checked.states, 'part of optimizer state finite', 'parts of optimizer state finite'));
  if (checked.tensors) texts.push(passedText(passed.tensors, checked.tensors, 'other tensor finite', 'other tensors finite'));
  if (checked.promised_states) texts.push(passedText(passed.promised_states, checked.promised_states, 'promised count kept', 'promised counts kept'));
  if (!texts.length) texts.push(data.verify.bytes.unprotected ? 'the files carry no checksums' : 'structure is as it must be');
  const text = texts.join(', ');
  return text[0].toUpperCase() + text.slice(1) + '.';
}
function drawVerdict() {
  const verify = data.verify;
  const damages = verify.findings.filter(finding => finding.severity === 'damage').length;
  const state = !verify.sound ? 'damaged' : verify.quick ? 'unproven' : 'sound';
  const titles = {damaged: 'Damaged: ' + counted(damages, 'problem'),
                  sound: verify.not_checked.length ? 'No damage found' : 'Sound', unproven: 'No damage found in a quick check'};
  const signs = {sound: 'M6 13.5l5 5L20 8.5', damaged: 'M8 8l10 10M18 8L8 18', unproven: 'M13 7v8M13 18.5v.5'};
  const card = element('section', {class: 'card', id: 'verdict', 'aria-label': 'Verdict'});
  const sign = drawing('svg', {viewBox: '0 0 26 26', width: 30, height: 30, 'aria-hidden': 'true', fill: 'none',
    stroke: 'currentColor', 'stroke-width': 2.6, 'stroke-linecap': 'round', 'stroke-linejoin': 'round'},
    drawing('path', {d: signs[state]}));
  card.append(element('div', {class: 'verdict', 'data-state': state}, element('div', {class: 'sign'}, sign),
    element('div', {}, element('h2', {text: titles[state]}), element('p', {text: checksText()}))));
  const list = element('ul', {class: 'findings'}), more = element('ul', {class: 'findings'});
  const kFew = 5, kMost = 500;
  verify.findings.slice(0, kMost).forEach((finding, i) => {
    const before = i > 0 ? verify.findings[i - 1].hint : '';
    (i < kFew ? list : more).append(findingRow(finding, finding.hint === before ? '' : finding.hint));
  });
  if (verify.findings.length > kMost) {
    more.append(element('li', {}, element('span', {}), element('span', {text: '… and ' + (verify.findings.length - kMost) + ' more: ckpt-inspect verify lists them'})));
  }
  if (more.childNodes.length) {
    const rest = element('details', {class: 'rest'}, element('summary', {text: counted(verify.findings.length - kFew, 'more finding')}), more);
    addEventListener('beforeprint', () => { rest.open = true; });
    list.append(element('li', {class: 'wide'}, rest));
  }
  for (const [title, rows] of [['not checked', verify.not_checked], ['not proven', verify.not_proven]]) {
    for (const row of rows) {
      list.append(element('li', {}, element('span', {}, element('span', {class: 'tag', text: title})),
        element('span', {class: 'text', text: shown(row.what) + (row.reason ? ': ' + shown(row.reason) : '')})));
    }
  }
  if (list.childNodes.length) card.append(list);
  card.append(facts());
  main.append(card);
}
function findingRow(finding, hint) {
  const isDamage = finding.severity === 'damage';
  const where = [finding.file, finding.offset_bytes !== undefined ? '@' + finding.offset_bytes : '', finding.key]
    .filter(Boolean).map(shown).join(' ');
  return element('li', {}, element('span', {}, element('span', {class: 'tag ' + (isDamage ? 'bad' : ''), text: isDamage ? 'damage' : 'note'})),
    element('div', {class: 'text'}, element('div', {text: shown(finding.problem)}), element('div', {class: 'where', text: where}),
      hint ? element('div', {class: 'muted', text: shown(hint)}) : null));
}
function facts() {
  const checkpoint = data.checkpoint, list = element('dl', {class: 'facts'});
  const add = (title, value, more) => list.append(element('div', {}, element('dt', {text: title}),
    element('dd', {}, value, more ? element('small', {text: more}) : null)));
  if (checkpoint.parameters !== undefined) add('Parameters', amountText(checkpoint.parameters), checkpoint.parameters.toLocaleString('en'));
  add('On disk', bytesText(checkpoint.file_bytes), counted(checkpoint.file_count, 'file'));
  add('Tensors', rowCount.toLocaleString('en'), bytesText(data.read.tensor_bytes));
  if (checkpoint.step !== undefined) add('Optimizer step', checkpoint.step.toLocaleString('en'));
  if (data.optimizers.length) {
    const rates = [...new Set(data.optimizers.flatMap(each => each.learning_rates))];
    add('Optimizer', data.optimizers.map(each => each.rule).join(' + '), rates.length ? 'lr ' + rates.map(numberText).join(', ') : '');
  }
  const bad = table.nan.counts.concat(table.inf.counts).reduce((sum, count) => sum + count, 0);
  add('NaN or infinite', bad ? amountText(bad) : 'none', bad ? 'elements' : data.read.is_sample ? 'in the sample' : '');
  if (data.read.is_sample) add('Sample', percentText(data.read.looked_at_bytes / data.read.tensor_bytes), bytesText(data.read.looked_at_bytes) + ' were read');
  return list;
}

function drawAttention() {
  const list = element('div', {class: 'attention'});
  for (const [mark, {style, text, tag}] of kMarks) {
    const rows = table.marks[mark] || [];
    if (!rows.length) continue;
    const button = element('button', {type: 'button', class: 'tag ' + style, 'data-mark': mark,
      onclick: () => { showMarked(mark); }}, counted(rows.length, 'tensor') + ' ' + text,
      element('small', {text: 'Show them in the table'}));
    list.append(button);
  }
  if (list.childNodes.length) section('attention', 'Worth a look', '', list);
}

// Types as shares of the bytes; what the optimizer takes beside the model.
const kTints = ['var(--bar)', 'var(--bar-2)', 'var(--faint)', 'var(--accent-line)', 'var(--line)'];
function shares(title, parts) {
  const total = parts.reduce((sum, part) => sum + part.bytes, 0);
  const stack = element('div', {class: 'stack', role: 'img', 'aria-label': parts.map(part => part.name + ' ' + bytesText(part.bytes)).join(', ')});
  const legend = element('div', {class: 'legend'});
  parts.forEach((part, i) => {
    const tint = kTints[Math.min(i, kTints.length - 1)];
    stack.append(tipped(element('i', {style: {flexGrow: String(part.bytes / Math.max(total, 1)), background: tint}}), () => part.name + '\n' + bytesText(part.bytes)));
    legend.append(element('span', {}, element('span', {class: 'dot', style: {background: tint}}), element('b', {text: shown(part.name)}),
      ' ' + bytesText(part.bytes) + (total ? ', ' + percentText(part.bytes / total) : '')));
  });
  return element('div', {}, element('h3', {text: title}), stack, legend);
}
function drawShares() {
  const byBytes = (a, b) => b.bytes - a.bytes;
  const types = new Map(), roles = new Map();
  for (let row = 0; row < rowCount; ++row) {
    const state = stateName(table.kinds[kindOf[row]]);
    types.set(dtypeOf(row), (types.get(dtypeOf(row)) || 0) + bytesOf(row));
    roles.set(state, (roles.get(state) || 0) + bytesOf(row));
  }
  const parts = map => [...map].map(([name, bytes]) => ({name, bytes})).sort(byBytes);
  return element('div', {class: 'two'}, shares('By type', parts(types)), shares('By what they are for', parts(roles)));
}

// --- treemap ---

class Node {
  constructor(name, parent) {
    this.name = name; this.parent = parent; this.bytes = 0; this.children = new Map(); this.param = -1;
  }
}
// A name's modules: of a pointer into a torch.save file, "/optimizer/state/0/exp_avg", its steps, below
// its file where it names one.
function stepsOf(name) {
  if (name.length > 2000) return [name];
  const pointer = /^(?:([^]*?):)?\/([^]*)$/.exec(name);
  if (!pointer) return name.split('.');
  const steps = pointer[2].split('/').map(step => step.replaceAll('~1', '/').replaceAll('~0', '~'));
  return pointer[1] ? [pointer[1], ...steps] : steps;
}
// Modules of one child are one step, as in decoder.layers.
function moduleTree(counts) {
  const root = new Node('', null);
  for (let name = 0; name < names.length; ++name) {
    let bytes = 0;
    for (let row = firstRow[name]; row < firstRow[name + 1]; ++row) if (counts(row)) bytes += bytesOf(row);
    if (!bytes) continue;
    let node = root;
    node.bytes += bytes;
    for (const step of stepsOf(names[name])) {
      if (!node.children.has(step)) node.children.set(step, new Node(step, node));
      node = node.children.get(step);
      node.bytes += bytes;
    }
    node.param = name;
  }
  return root;
}
function joined(node) {
  let label = node.name;
  while (node.children.size === 1 && node.param < 0) {
    const [child] = node.children.values();
    label = label + '.' + child.name;
    node = child;
  }
  return {node, label};
}
// Squarified treemaps (Bruls, Huizing, van Wijk 2000).
function squarify(items, box) {
  const placed = [];
  const total = items.reduce((sum, item) => sum + item.bytes, 0);
  let {x, y, width, height} = box;
  const scale = width * height / Math.max(total, 1);
  let rest = items.map(item => ({item, area: item.bytes * scale}));
  while (rest.length) {
    const side = Math.min(width, height);
    let count = 1, sum = rest[0].area, worst = Infinity;
    const ratio = (sum, smallest, largest) => Math.max(side * side * largest / (sum * sum), sum * sum / (side * side * smallest));
    worst = ratio(sum, rest[0].area, rest[0].area);
    while (count < rest.length) {
      const next = ratio(sum + rest[count].area, rest[count].area, rest[0].area);
      if (next > worst) break;
      worst = next;
      sum += rest[count++].area;
    }
    const depth = sum / Math.max(side, 1e-9);
    let along = 0;
    for (const {item, area} of rest.slice(0, count)) {
      const length = area / Math.max(depth, 1e-9);
      placed.push(width < height ? {item, x: x + along, y, width: length, height: depth}
                                 : {item, x, y: y + along, width: depth, height: length});
      along += length;
    }
    if (width < height) { y += depth; height -= depth; } else { x += depth; width -= depth; }
    rest = rest.slice(count);
  }
  return placed;
}
function largestOf(node, most) {
  const children = [...node.children.values()].sort((a, b) => b.bytes - a.bytes);
  const shownOnes = children.slice(0, most);
  const others = children.slice(most);
  if (others.length) {
    const rest = new Node('(' + others.length + ' more)', node);
    rest.bytes = others.reduce((sum, child) => sum + child.bytes, 0);
    shownOnes.push(rest);
  }
  return shownOnes;
}
const treemap = {root: null, node: null, map: null, crumbs: null};
function drawTreemap() {
  if (!names.length) return;
  const crumbs = element('nav', {class: 'crumbs', 'aria-label': 'Module'});
  const map = element('div', {class: 'map', role: 'group', 'aria-label': 'Bytes by module; Enter opens one, Escape goes back'});
  Object.assign(treemap, {map, crumbs});
  const filters = [['All', () => true], ['Weights', row => !isState(row)], ['Optimizer', isState]];
  const buttons = element('div', {class: 'segments', role: 'group', 'aria-label': 'Which bytes'});
  filters.forEach(([title, filter], i) => buttons.append(element('button', {type: 'button', 'aria-pressed': String(i === 0), text: title,
    onclick: event => {
      for (const button of buttons.children) button.setAttribute('aria-pressed', String(button === event.currentTarget));
      treemap.root = moduleTree(filter);
      zoom(treemap.root, false);
    }})));
  const hasState = table.kinds.some(kind => kind.role === 'optimizer_state');
  const made = section('modules', 'Bytes by module', '', element('div', {class: 'headline'}, element('p', {class: 'muted', text: 'Click a module to look into it; a tensor shows it in the table.'}),
    hasState ? buttons : null), crumbs, map, drawShares());
  map.addEventListener('keydown', event => {
    if (event.key === 'Escape' && treemap.node.parent) { zoom(parentOf(treemap.node), true); event.preventDefault(); }
    const step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[event.key];
    if (step) {
      const tiles = [...map.querySelectorAll('button')], at = tiles.indexOf(document.activeElement);
      const next = tiles[(at + step + tiles.length) % tiles.length];
      if (next) { next.focus(); event.preventDefault(); }
    }
  });
  treemap.root = moduleTree(() => true);
  zoom(treemap.root, false);
  new ResizeObserver(() => place()).observe(map);
  return made;
}
// Past parents of one child, which are shown as one.
function parentOf(node) {
  let parent = node.parent;
  while (parent && parent.parent && parent.children.size === 1 && parent.param < 0) parent = parent.parent;
  return parent || node;
}
function zoom(node, takesFocus) {
  treemap.node = node;
  const path = [];
  for (let at = node; at; at = at.parent) path.unshift(at);
  treemap.crumbs.replaceChildren();
  let label = '';
  path.forEach((at, i) => {
    label += (label ? '.' : '') + at.name;
    const isLast = at === node;
    if (!isLast && i > 0 && at.children.size === 1 && at.param < 0) return;
    if (treemap.crumbs.childNodes.length) treemap.crumbs.append(element('span', {class: 'sep', 'aria-hidden': 'true', text: '/'}));
    const text = i === 0 ? 'model' : shown(label);
    treemap.crumbs.append(isLast ? element('span', {'aria-current': 'location', text}) :
      element('button', {type: 'button', text, onclick: () => zoom(at, true)}));
    if (i > 0) label = '';
  });
  treemap.crumbs.append(element('span', {class: 'total', text: bytesText(node.bytes)}));
  place();
  if (takesFocus) {
    const first = treemap.map.querySelector('button');
    if (first) first.focus({preventScroll: true});
  }
}
function place() {
  const {map, node} = treemap;
  const box = {x: 0, y: 0, width: map.clientWidth, height: map.clientHeight};
  if (!box.width) return;
  const hadFocus = map.contains(document.activeElement) ? [...map.children].indexOf(document.activeElement) : -1;
  map.replaceChildren();
  for (const {item, x, y, width, height} of squarify(largestOf(node, 150), box)) {
    const {node: inner, label} = joined(item);
    const isLeaf = inner.children.size === 0;
    const tile = element('button', {type: 'button', class: isLeaf ? 'leaf' : '',
      'aria-label': shown(label) + ', ' + bytesText(item.bytes),
      style: {left: x + 'px', top: y + 'px', width: width + 'px', height: height + 'px'},
      onclick: () => isLeaf ? showParam(inner.param) : zoom(inner, true)});
    if (width < 14 || height < 14) tile.style.padding = '0';
    if (!isLeaf && width > 90 && height > 60) addPreview(tile, inner, width, height);
    if (width > 34 && height > 20) tile.append(element('span', {class: 'name', text: shown(label)}));
    if (width > 54 && height > 40) tile.append(element('span', {class: 'size', text: bytesText(item.bytes) + ' · ' + percentText(item.bytes / Math.max(node.bytes, 1))}));
    map.append(tipped(tile, () => shown(label) + '\n' + bytesText(item.bytes) + ', ' + percentText(item.bytes / Math.max(node.bytes, 1)) + ' of what is shown'));
  }
  if (hadFocus >= 0 && map.children[hadFocus]) map.children[hadFocus].focus({preventScroll: true});
}
// What lies inside, as outlines with names where there is room.
function addPreview(tile, node, width, height) {
  addOutlines(tile, node, {x: 5, y: 44, width: width - 12, height: height - 52}, 3);
}
function addOutlines(tile, node, box, depth) {
  const kTitle = 16;
  for (const part of squarify(largestOf(node, 60), box)) {
    if (part.width < 5 || part.height < 5) continue;
    const {node: inner, label} = joined(part.item);
    const isSplit = depth > 1 && inner.children.size > 1 && part.width > 24 && part.height > 24;
    const hasName = part.width > 44 && part.height > (isSplit ? 44 : 18);
    tile.append(element('i', {'aria-hidden': 'true', class: isSplit ? 'outer' : '', text: hasName ? shown(label.slice(0, 200)) : '',
      style: {left: part.x + 'px', top: part.y + 'px', width: part.width - 2 + 'px', height: part.height - 2 + 'px'}}));
    if (!isSplit) continue;
    const top = hasName ? kTitle : 1;
    addOutlines(tile, inner, {x: part.x + 2, y: part.y + top, width: part.width - 5, height: part.height - top - 3}, depth - 1);
  }
}

// --- ranks ---

const kSizeNames = [['tensor_model_parallel_size', 'TP'], ['pipeline_model_parallel_size', 'PP'],
  ['virtual_pipeline_model_parallel_size', 'VPP'], ['context_parallel_size', 'CP'],
  ['expert_model_parallel_size', 'EP'], ['expert_tensor_parallel_size', 'ETP'], ['data_parallel_size', 'DP']];
function sizesText() {
  const list = element('div', {class: 'sizes'});
  for (const [arg, short] of kSizeNames) {
    const size = data.grid.sizes[arg];
    if (size === undefined) continue;
    list.append(element('span', {class: size === 1 ? 'is-one' : '', title: arg}, short + ' ', element('b', {text: String(size)})));
  }
  if (data.grid.sizes.world_size !== undefined) list.append(element('span', {}, 'ranks ', element('b', {text: data.grid.sizes.world_size.toLocaleString('en')})));
  return list.childNodes.length ? list : null;
}
// A block for each pipeline stage; in it a row for each data parallel rank (times context), a column
// for each tensor parallel one. The tint is the rank's work, or its expert parallel rank.
function gridPicture() {
  const ranks = data.grid.ranks;
  if (ranks.length < 2 || ranks.length > 4096) return null;
  const [TP, PP, CP, DP, EP] = [1, 2, 3, 4, 5].map(axis => 1 + Math.max(...ranks.map(rank => rank[axis])));
  const most = TP * DP * CP, cell = most > 256 ? 8 : most > 64 ? 14 : most > 16 ? 24 : 40, gap = cell > 10 ? 3 : 1;
  const blockWidth = TP * (cell + gap), blockHeight = DP * CP * (cell + gap);
  const across = Math.max(1, Math.min(PP, Math.floor(560 / (blockWidth + 40)))), left = 44;
  const down = Math.ceil(PP / across);
  const width = left + across * (blockWidth + 26), height = down * (blockHeight + 42) + 4;
  const loads = new Map(data.ranks.map(load => [load.rank, load]));
  const costs = data.ranks.map(load => load.cost ?? load.state_bytes), costMax = Math.max(...costs, 0);
  const picture = drawing('svg', {viewBox: `0 0 ${width} ${height}`, width, height, role: 'img', 'aria-label': `Grid of ${ranks.length} ranks`});
  for (let pp = 0; pp < PP; ++pp) {
    const x0 = left + (pp % across) * (blockWidth + 26), y0 = Math.floor(pp / across) * (blockHeight + 42) + 26;
    picture.append(drawing('text', {x: x0, y: y0 - 9, text: PP > 1 ? 'stage ' + pp : 'one stage'}));
  }
  for (const [rank, tp, pp, cp, dp, ep] of ranks) {
    const x = left + (pp % across) * (blockWidth + 26) + tp * (cell + gap);
    const y = Math.floor(pp / across) * (blockHeight + 42) + 26 + (dp * CP + cp) * (cell + gap);
    const load = loads.get(rank), cost = load ? load.cost ?? load.state_bytes : 0;
    const box = drawing('rect', {x, y, width: cell, height: cell, rx: Math.min(5, cell / 4), fill: 'var(--bar)',
      'fill-opacity': costMax ? (0.15 + 0.6 * cost / costMax).toFixed(3) : 0.3, stroke: 'var(--accent-line)', 'stroke-width': cell > 10 ? 1 : 0});
    tipped(box, () => `rank ${rank}\ntp ${tp}  pp ${pp}  cp ${cp}  dp ${dp}` + (EP > 1 ? `  ep ${ep}` : '') +
      (load ? `\n${bytesText(load.state_bytes)} of optimizer state` : ''));
    picture.append(box);
    if (cell >= 24) picture.append(drawing('text', {x: x + cell / 2, y: y + cell / 2 + 4, 'text-anchor': 'middle', 'pointer-events': 'none', style: 'fill:var(--ink)', text: String(rank)}));
    if (tp === 0 && pp % across === 0 && cell >= 14) picture.append(drawing('text', {x: left - 6, y: y + cell / 2 + 4, 'text-anchor': 'end', text: CP > 1 ? `dp ${dp}.${cp}` : 'dp ' + dp}));
  }
  return element('figure', {class: 'scroll', style: {margin: '0'}}, picture,
    element('figcaption', {class: 'muted', style: {fontSize: '.82rem'}, text: 'Columns: tensor parallel ranks. Darker: more work in a step.'}));
}
function rankBars() {
  if (!data.ranks.length) return null;
  const hasCost = data.ranks.some(load => load.cost !== undefined);
  const bytesMax = Math.max(...data.ranks.map(load => load.state_bytes), 1);
  const costMax = Math.max(...data.ranks.map(load => load.cost || 0), 1e-300);
  const costMean = data.ranks.reduce((sum, load) => sum + (load.cost || 0), 0) / data.ranks.length;
  const bars = element('div', {class: 'bars', role: 'table', 'aria-label': 'Work and bytes of each rank', tabindex: '0'});
  const row = (...cells) => bars.append(element('div', {role: 'row', style: {display: 'contents'}}, ...cells));
  const head = (text, className) => element('span', {class: 'head ' + (className || ''), role: 'columnheader', text});
  row(head('Rank'), head('Work in a step'), head(hasCost ? 'of the mean' : '', 'value'), head('Optimizer state'), head('', 'value'));
  const meter = share => element('span', {class: 'meter', role: 'cell'}, element('i', {style: {width: (100 * share).toFixed(2) + '%'}}));
  for (const load of data.ranks.slice(0, 512)) {
    row(element('span', {role: 'rowheader', text: String(load.rank)}),
      hasCost ? meter((load.cost || 0) / costMax) : element('span', {role: 'cell', class: 'muted', text: '–'}),
      element('span', {class: 'value', role: 'cell', text: hasCost && costMean ? ((load.cost || 0) / costMean).toFixed(2) : ''}),
      meter(load.state_bytes / bytesMax), element('span', {class: 'value', role: 'cell', text: bytesText(load.state_bytes)}));
  }
  if (data.ranks.length > 512) bars.append(element('span', {text: '…'}));
  return bars;
}
function drawRanks() {
  const sizes = sizesText(), picture = gridPicture(), bars = rankBars();
  if (!sizes && !picture && !bars) return;
  const body = picture && bars ? element('div', {class: 'ranks'}, picture, bars) : picture || bars;
  section('ranks', 'Ranks', '', sizes, body);
}

// --- parameter groups, side by side ---

const kMainSettings = ['lr', 'max_lr', 'min_lr', 'weight_decay', 'wd_mult', 'betas', 'eps', 'momentum', 'step'];
function drawGroups() {
  const groups = data.groups.slice(0, 64);
  if (!groups.length) return;
  const settings = new Set(kMainSettings.filter(name => groups.some(group => Object.hasOwn(group.settings, name))));
  for (const group of groups) for (const name of Object.keys(group.settings)) settings.add(name);
  const head = element('tr', {}, element('th', {scope: 'col', text: 'Setting'}));
  groups.forEach(group => head.append(element('th', {scope: 'col', class: 'num'}, element('div', {text: group.rule}), element('div', {class: 'muted', text: (group.file ? shown(group.file) + ' ' : '') + group.optimizer + '.' + group.group}))));
  const body = element('tbody', {});
  const addRow = (title, texts) => {
    const differs = new Set(texts).size > 1;
    body.append(element('tr', {}, element('td', {class: 'mono muted', text: shown(title)}), ...texts.map(text => element('td', {class: 'num' + (differs ? ' differs' : ''), text: shown(text)}))));
  };
  if (groups.some(group => group.parameters !== undefined)) addRow('parameters', groups.map(group => group.parameters === undefined ? '–' : group.parameters.toLocaleString('en')));
  if (groups.some(group => group.elements !== undefined)) addRow('elements', groups.map(group => group.elements === undefined ? '–' : group.elements.toLocaleString('en')));
  for (const name of settings) {
    addRow(name, groups.map(group => {
      if (!Object.hasOwn(group.settings, name)) return '–';
      const value = group.settings[name];
      return settingText(value).slice(0, 200);
    }));
  }
  const made = section('groups', 'Parameter groups', data.unnamed_reason ? 'Which parameters are in which group is not known: ' + shown(data.unnamed_reason) : '',
    element('div', {class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Parameter groups'}, element('table', {class: 'groups'}, element('thead', {}, head), body)));
  made.classList.add('long');
}

// --- layers: norms along the depth of the model ---

function layerSums() {
  const layers = new Map();
  for (let name = 0; name < names.length; ++name) {
    const match = /^(.*?)\.(\d+)\./.exec(names[name].slice(0, 1000));
    if (!match) continue;
    if (!layers.has(match[1])) layers.set(match[1], new Map());
    const list = layers.get(match[1]), number = Number(match[2]);
    if (!list.has(number)) list.set(number, {weight: 0, update: 0, hasUpdate: false, states: new Map()});
    const layer = list.get(number);
    for (let row = firstRow[name]; row < firstRow[name + 1]; ++row) {
      const squared = columns.norm[row] ** 2;
      if (Number.isNaN(squared)) continue;
      const kind = table.kinds[kindOf[row]];
      if (kind.role === 'model') layer.weight += squared;
      else if (kind.role === 'optimizer_state') layer.states.set(kind.state, (layer.states.get(kind.state) || 0) + squared);
    }
    if (updates && !Number.isNaN(updates[name])) { layer.update += updates[name] ** 2; layer.hasUpdate = true; }
  }
  let best = null;
  for (const [list, numbers] of layers) if (!best || numbers.size > best.numbers.size) best = {list, numbers};
  return best;
}
function lineChart(title, series, labels) {
  const width = 560, height = 190, left = 62, right = 12, top = 12, bottom = 30;
  const values = series.flatMap(line => line.values).filter(value => value > 0);
  if (!values.length) return null;
  let low = Math.log10(Math.min(...values)), high = Math.log10(Math.max(...values));
  if (high - low < 0.3) { const middle = (high + low) / 2; low = middle - 0.15; high = middle + 0.15; }
  const x = i => labels.length === 1 ? (left + width - right) / 2 : left + (width - left - right) * i / (labels.length - 1);
  const y = value => top + (height - top - bottom) * (high - Math.log10(value)) / (high - low);
  const picture = drawing('svg', {class: 'picture', viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': title});
  for (let i = 0; i < 4; ++i) {
    const power = low + (high - low) * i / 3, at = top + (height - top - bottom) * (3 - i) / 3;
    picture.append(drawing('line', {x1: left, x2: width - right, y1: at, y2: at, stroke: 'var(--line)'}),
      drawing('text', {x: left - 8, y: at + 4, 'text-anchor': 'end', text: roughText(10 ** power)}));
  }
  const every = Math.ceil(labels.length / 12);
  labels.forEach((label, i) => { if (i % every === 0) picture.append(drawing('text', {x: x(i), y: height - 10, 'text-anchor': 'middle', text: String(label)})); });
  for (const line of series) {
    const points = line.values.map((value, i) => value > 0 ? [x(i), y(value)] : null).filter(Boolean);
    picture.append(drawing('polyline', {points: points.map(point => point.map(at => at.toFixed(1)).join(',')).join(' '), fill: 'none', stroke: line.tint, 'stroke-width': 2, 'stroke-linejoin': 'round'}));
    line.values.forEach((value, i) => {
      if (!(value > 0)) return;
      picture.append(tipped(drawing('circle', {cx: x(i), cy: y(value), r: labels.length > 40 ? 2.5 : 4, fill: line.tint, stroke: 'var(--card)', 'stroke-width': 1.5}),
        () => 'layer ' + labels[i] + '\n' + line.name + ' ' + numberText(value)));
    });
  }
  const legend = element('div', {class: 'legend'}, ...series.map(line => element('span', {}, element('span', {class: 'dot', style: {background: line.tint}}), line.name)));
  return element('div', {}, element('h3', {text: title}), picture, legend);
}
function drawLayers() {
  const best = layerSums();
  const reasons = table.update_not_computed || [];
  if (!best || best.numbers.size < 2) return;
  const labels = [...best.numbers.keys()].sort((a, b) => a - b), layers = labels.map(label => best.numbers.get(label));
  const charts = [];
  const hasUpdates = layers.some(layer => layer.hasUpdate);
  if (hasUpdates) {
    charts.push(lineChart('Norm of the update, as a share of the weights’ norm',
      [{name: 'update / weights', tint: 'var(--bar)', values: layers.map(layer => layer.hasUpdate && layer.weight ? Math.sqrt(layer.update / layer.weight) : 0)}], labels));
  }
  const isNoMoment = new Set(['fp32_param', 'step', 'common_step']);  // counts of steps have no norm
  const states = [...new Set(layers.flatMap(layer => [...layer.states.keys()]))].filter(state => !isNoMoment.has(state)).slice(0, 3);
  const tints = ['var(--faint)', 'var(--bar)', 'var(--warn)', 'var(--good)'];
  charts.push(lineChart('Norms of weights and optimizer state',
    [{name: 'weights', tint: tints[0], values: layers.map(layer => Math.sqrt(layer.weight))},
     ...states.map((state, i) => ({name: shown(state), tint: tints[i + 1], values: layers.map(layer => Math.sqrt(layer.states.get(state) || 0))}))], labels));
  const lead = 'Layers of ' + shown(best.list) + '.' + (hasUpdates ? ' The update is what the stored moments make of the weights at the stored learning rate and step; the next gradient is not known.' : '');
  const notes = reasons.map(row => element('p', {class: 'muted', text: 'Not computed for ' + counted(row.parameters, 'parameter') + (row.rule ? ' of ' + shown(row.rule) : '') + ': ' + shown(row.reason) + '.'}));
  if (estimated.size) notes.push(element('p', {class: 'muted', text: counted(estimated.size, 'update norm') + ' estimated from 65,536 elements.'}));
  section('layers', 'Along the layers', lead, element('div', {class: 'two'}, ...charts.filter(Boolean)), ...notes);
}

// --- pictures of histograms ---

function spark(bars, width, height) {
  const sides = Math.max(bars.negative.length, bars.positive.length, 1);
  const count = (bars.negative.length ? sides : 0) + 1 + (bars.positive.length ? sides : 0);
  const slot = width / count, gap = slot > 4 ? 1 : 0.3;
  const heights = [...bars.negative, bars.middle, ...[...bars.positive].reverse()];
  const picture = drawing('svg', {class: 'spark', viewBox: `0 0 ${width} ${height}`, width, height, 'aria-hidden': 'true', preserveAspectRatio: 'none'});
  let path = '';
  heights.forEach((share, i) => {
    if (!share) return;
    const tall = Math.max(1, share * (height - 1));
    if (i === bars.negative.length) {
      picture.append(drawing('rect', {class: 'mid', x: (i * slot).toFixed(2), y: (height - tall).toFixed(2), width: (slot - gap).toFixed(2), height: tall.toFixed(2)}));
    } else {
      path += `M${(i * slot).toFixed(2)} ${height}v${(-tall).toFixed(2)}h${(slot - gap).toFixed(2)}v${tall.toFixed(2)}z`;
    }
  });
  picture.append(drawing('path', {d: path}), drawing('line', {class: 'base', x1: 0, x2: width, y1: height - 0.5, y2: height - 0.5}));
  return picture;
}

// --- the table of tensors ---

const kRowHeight = 32;
const grid = {node: null, order: null, sort: {column: null, down: false}, selected: -1, query: '', state: '', mark: '', pool: new Map()};
const comparison = data.comparison || null;
// By row of the table: what has changed there; rows without are equal.
const changes = comparison ? new Map() : null;
if (comparison) {
  const {rows} = comparison, count = rows.count, row = countsOf(rows.row);
  const parts = {different: countsOf(rows.different), outside: countsOf(rows.outside), nonfinite: sparse(rows.nonfinite, count)};
  for (const part of ['max_abs', 'max_rel', 'one_minus_cosine', 'norm_ratio']) parts[part] = numbersOf(rows[part], count);
  for (let i = 0; i < count; ++i) {
    const change = {};
    for (const [part, values] of Object.entries(parts)) change[part] = values[i];
    changes.set(row[i], change);
  }
}
const changePart = part => row => changes.has(row) ? changes.get(row)[part] : part === 'norm_ratio' ? 1 : 0;
const hasTolerance = comparison !== null && (comparison.atol > 0 || comparison.rtol > 0);
const isRed = row => changes.has(row) && ((hasTolerance && changes.get(row).outside > 0) || changes.get(row).nonfinite > 0);
const kPaper = column => !column.still;
const kTableColumns = [
  {id: 'name', title: 'Tensor', width: 'minmax(270px, 1fr)', text: true},
  {id: 'state', title: 'Is', width: '92px', text: true},
  {id: 'bars', title: 'Histogram', width: '104px', still: true},
  {id: 'dtype', title: 'Type', width: '78px', text: true},
  {id: 'shape', title: 'Shape', width: '106px', value: elementsOf},
  {id: 'bytes', title: 'Bytes', width: '78px', value: bytesOf},
  {id: 'min', title: 'Min', width: '92px', value: row => columns.min[row]},
  {id: 'max', title: 'Max', width: '92px', value: row => columns.max[row]},
  {id: 'mean', title: 'Mean', width: '92px', value: row => columns.mean[row]},
  {id: 'std', title: 'Std', width: '88px', value: row => columns.std[row]},
  {id: 'norm', title: 'Norm', width: '88px', value: row => columns.norm[row]},
  {id: 'zeros', title: 'Zeros', width: '64px', value: row => zeros[row] / Math.max(lookedAt(row), 1)},
];
const nonFiniteCount = nan.reduce((sum, count) => sum + count, 0) + inf.reduce((sum, count) => sum + count, 0);
if (nonFiniteCount) kTableColumns.push({id: 'nan', title: 'NaN, Inf', width: '78px', value: row => nan[row] + inf[row]});
const kChangeColumns = !changes ? [] : [
  {id: 'change_rel', part: 'max_rel', title: 'Δ rel', long: 'max rel', width: '92px'},
  {id: 'change_abs', part: 'max_abs', title: 'Δ abs', long: 'max abs', width: '92px'},
  {id: 'change_turn', part: 'one_minus_cosine', title: '1 − cos', long: '1 − cosine', width: '92px'},
  {id: 'change_norm', part: 'norm_ratio', title: 'Norm ×', long: 'norm ratio', width: '80px'},
].map(column => ({...column, value: changePart(column.part)}));
// What has changed comes before what is.
const allColumns = () => [...kTableColumns.slice(0, 3), ...kChangeColumns, ...kTableColumns.slice(3)];
function cellText(id, row) {
  switch (id) {
    case 'state': return shown(stateName(table.kinds[kindOf[row]]));
    case 'dtype': return dtypeOf(row);
    case 'shape': return shapeText(table.shapes[shapeOf[row]]);
    case 'bytes': return bytesText(bytesOf(row));
    case 'zeros': return unread.has(row) ? '–' : percentText(zeros[row] / Math.max(lookedAt(row), 1));
    case 'nan': return nan[row] + inf[row] ? (nan[row] + inf[row]).toLocaleString('en') : '0';
    default: return Number.isNaN(columns[id][row]) ? '–' : numberText(columns[id][row]);
  }
}
function nameCell(row) {
  const full = names[nameOf[row]], text = shown(full.length > 600 ? full.slice(0, 300) + '…' + full.slice(-200) : full);
  const parts = text.split('.');
  const leaf = parts.splice(-Math.min(2, parts.length)).join('.');
  const cell = element('div', {class: 'key', role: 'rowheader'}, element('span', {class: 'text'},
    element('span', {class: 'path', text: parts.length ? parts.join('.') + '.' : ''}), element('span', {class: 'leaf', text: leaf})));
  for (const mark of tagsOf(row)) cell.append(element('span', {class: 'tag ' + kMarks.get(mark).style, text: kMarks.get(mark).tag}));
  if (sampled.has(row)) cell.append(element('span', {class: 'tag', text: 'sample'}));
  if (unread.has(row)) cell.append(element('span', {class: 'tag warn', text: 'not read'}));
  return cell;
}
function makeRow(position) {
  const row = grid.order[position];
  const node = element('div', {class: 'row cells' + (isState(row) ? ' is-state' : ''), role: 'row', id: 'row-' + row,
    'aria-rowindex': position + 2, 'aria-selected': String(row === grid.selected), style: {transform: `translateY(${38 + position * kRowHeight}px)`}});
  node.append(nameCell(row));
  for (const column of kTableColumns.slice(1)) {
    if (column.still) {
      node.append(element('div', {role: 'cell'}, unread.has(row) ? '' : spark(barsAt(table.bars, row), 90, 20)));
      if (changes) node.append(...changeCells(row));
      continue;
    }
    const cell = element('div', {role: 'cell', class: column.text ? '' : 'num', text: cellText(column.id, row)});
    if (column.id === 'nan' && nan[row] + inf[row]) cell.classList.add('alert');
    node.append(cell);
  }
  node.addEventListener('click', () => select(position));
  tipped(node.firstChild, () => shown(names[nameOf[row]].slice(0, 1000)));
  return node;
}
function renderRows() {
  hideTip();
  const view = grid.node, first = Math.max(0, Math.floor(view.scrollTop / kRowHeight) - 8);
  const last = Math.min(grid.order.length, Math.ceil((view.scrollTop + view.clientHeight) / kRowHeight) + 8);
  for (const [position, node] of grid.pool) {
    if (position < first || position >= last) { node.remove(); grid.pool.delete(position); }
  }
  for (let position = first; position < last; ++position) {
    if (grid.pool.has(position)) continue;
    const node = makeRow(position);
    grid.pool.set(position, node);
    grid.body.append(node);
  }
}
function redraw() {
  for (const node of grid.pool.values()) node.remove();
  grid.pool.clear();
  grid.body.style.height = 38 + grid.order.length * kRowHeight + 'px';
  grid.node.setAttribute('aria-rowcount', String(grid.order.length + 1));
  grid.count.textContent = grid.order.length === rowCount ? counted(rowCount, 'tensor') : grid.order.length.toLocaleString('en') + ' of ' + counted(rowCount, 'tensor');
  grid.empty.hidden = grid.order.length !== 0;
  renderRows();
}
let lowerNames = null;
function matches(row, terms) {
  const kind = table.kinds[kindOf[row]];
  const name = lowerNames[nameOf[row]];
  return terms.every(term => name.includes(term) || stateName(kind).toLowerCase().includes(term) || kind.state.toLowerCase().includes(term) || kind.dtype === term);
}
function filterRows() {
  if (!lowerNames) lowerNames = names.map(name => name.toLowerCase());
  const terms = grid.query.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = [];
  for (let row = 0; row < rowCount; ++row) {
    if (grid.state && stateName(table.kinds[kindOf[row]]) !== grid.state) continue;
    if (grid.mark && !(marksOf.get(row) || []).includes(grid.mark)) continue;
    if (terms.length && !matches(row, terms)) continue;
    rows.push(row);
  }
  grid.order = rows;
  sortRows();
  grid.node.scrollTop = 0;
  redraw();
}
function sortRows() {
  const {column, down} = grid.sort;
  if (!column || column.id === 'name') {
    grid.order.sort((a, b) => a - b);
    if (column && down) grid.order.reverse();
    return;
  }
  const sign = down ? -1 : 1;
  if (column.text) {
    const ranks = new Map([...new Set(table.kinds.map((_, i) => cellText2(column.id, i)))].sort().map((text, i) => [text, i]));
    const keys = table.kinds.map((_, i) => ranks.get(cellText2(column.id, i)));
    grid.order.sort((a, b) => sign * (keys[kindOf[a]] - keys[kindOf[b]]) || a - b);
    return;
  }
  const keys = new Float64Array(rowCount);
  for (const row of grid.order) keys[row] = column.value(row);
  // What has no value comes last, whichever way.
  grid.order.sort((a, b) => {
    const x = keys[a], y = keys[b];
    if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y) || a - b;
    return sign * (x - y) || a - b;
  });
}
const cellText2 = (id, kind) => id === 'state' ? stateName(table.kinds[kind]) : table.kinds[kind].dtype;
function sortBy(column, header) {
  const isSame = grid.sort.column === column;
  // Numbers from the largest first; a third click is the order of the model again.
  const firstDown = !column.text;
  if (!isSame) grid.sort = {column, down: firstDown};
  else if (grid.sort.down === firstDown) grid.sort = {column, down: !firstDown};
  else grid.sort = {column: null, down: false};
  for (const node of header.parentNode.children) if (node.hasAttribute('aria-sort')) node.setAttribute('aria-sort', 'none');
  if (grid.sort.column) header.setAttribute('aria-sort', grid.sort.down ? 'descending' : 'ascending');
  sortRows();
  grid.node.scrollTop = 0;
  grid.node.classList.toggle('is-sorted', grid.sort.column !== null && grid.sort.column.id !== 'name');
  redraw();
}
function select(position) {
  if (position < 0 || position >= grid.order.length) return;
  grid.selected = grid.order[position];
  for (const [at, node] of grid.pool) node.setAttribute('aria-selected', String(at === position));
  const top = position * kRowHeight, view = grid.node;
  if (top < view.scrollTop) view.scrollTop = top;
  else if (top + kRowHeight + 38 > view.scrollTop + view.clientHeight) view.scrollTop = top + kRowHeight + 40 - view.clientHeight;
  renderRows();
  view.setAttribute('aria-activedescendant', 'row-' + grid.selected);
  drawDetail(grid.selected);
}
function onGridKey(event) {
  if (event.target !== grid.node) return;
  const at = grid.order.indexOf(grid.selected), page = Math.max(1, Math.floor(grid.node.clientHeight / kRowHeight) - 2);
  const next = {ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: grid.order.length - 1}[event.key];
  if (next === undefined) return;
  event.preventDefault();
  select(Math.max(0, Math.min(grid.order.length - 1, next)));
}
function drawDetail(row) {
  const name = nameOf[row], detail = grid.detail;
  detail.hidden = false;
  detail.replaceChildren(element('h3', {text: shown(names[name])}));
  const lines = [];
  if (groupOf[row]) {
    const group = data.groups[groupOf[row] - 1];
    lines.push(`${group.rule}, group ${group.optimizer}.${group.group}` + (typeof group.settings.lr === 'number' ? ', lr ' + numberText(group.settings.lr) : ''));
  }
  if (updates && !Number.isNaN(updates[name])) {
    const weightNorm = columns.norm[firstRow[name]];
    lines.push('update norm ' + numberText(updates[name]) + (estimated.has(name) ? ' (estimated)' : '') + (weightNorm ? ', ' + percentText(updates[name] / weightNorm) + ' of the weight’s' : ''));
  }
  if (lines.length) detail.append(element('p', {class: 'muted', text: lines.join('  ·  ')}));
  const cards = element('div', {class: 'moments'});
  for (let other = firstRow[name]; other < firstRow[name + 1]; ++other) cards.append(momentCard(other, other === row));
  detail.append(cards);
}
function momentCard(row, isHere) {
  const kind = table.kinds[kindOf[row]];
  const title = element('h4', {}, shown(stateName(kind)), element('span', {class: 'tag', text: kind.dtype}));
  for (const mark of tagsOf(row)) title.append(element('span', {class: 'tag ' + kMarks.get(mark).style, text: kMarks.get(mark).tag}));
  const card = element('div', {class: 'moment' + (isHere ? ' is-here' : '')}, title, element('div', {class: 'muted', text: shapeText(table.shapes[shapeOf[row]]) + ', ' + bytesText(bytesOf(row))}));
  const list = element('dl', {});
  const add = (term, text) => list.append(element('dt', {text: term}), element('dd', {text}));
  if (unread.has(row)) {
    card.append(element('p', {class: 'muted', text: 'It could not be read, or the sample had no room for it.'}));
    return card;
  }
  const bars = barsAt(table.bars, row), picture = spark(bars, 200, 64);
  picture.setAttribute('width', '100%');
  card.append(element('div', {style: {marginTop: '.6rem'}}, picture));
  if (bars.top !== null && (bars.negative.length || bars.positive.length)) {
    const edge = powerText(bars.top + 1);
    card.append(element('div', {class: 'axis'}, element('span', {text: bars.negative.length ? '−' + edge : '0'}),
      bars.negative.length && bars.positive.length ? element('span', {text: '0'}) : null, element('span', {text: bars.positive.length ? edge : '0'})));
  }
  for (const part of ['min', 'max', 'mean', 'std', 'norm']) add(part, Number.isNaN(columns[part][row]) ? '–' : numberText(columns[part][row]));
  add('zeros', zeros[row].toLocaleString('en') + ', ' + percentText(zeros[row] / Math.max(lookedAt(row), 1)));
  if (nan[row]) add('NaN', nan[row].toLocaleString('en'));
  if (inf[row]) add('Inf', inf[row].toLocaleString('en'));
  if (sampled.has(row)) add('looked at', sampled.get(row).toLocaleString('en') + ' elements');
  if (changes) for (const [term, text] of changeTexts(row)) add(term, text);
  card.append(list);
  return card;
}
function showParam(name) {
  if (name < 0) return;
  clearFilters();
  filterRows();
  select(grid.order.indexOf(firstRow[name]));
  byId('tensors').scrollIntoView();
  grid.node.focus({preventScroll: true});
}
function clearFilters() {
  Object.assign(grid, {query: '', state: '', mark: ''});
  grid.input.value = '';
  for (const button of grid.chips.children) button.setAttribute('aria-pressed', String(button.dataset.state === '' && !button.dataset.mark));
}
function showMarked(mark) {
  clearFilters();
  grid.mark = mark;
  for (const button of grid.chips.children) button.setAttribute('aria-pressed', String(button.dataset.mark === mark));
  filterRows();
  byId('tensors').scrollIntoView();
  grid.node.focus({preventScroll: true});
}
function drawTable() {
  const input = element('input', {type: 'search', placeholder: 'Search tensors   /', 'aria-label': 'Search tensors', spellcheck: 'false', autocomplete: 'off'});
  let waiting = 0;
  input.addEventListener('input', () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => { grid.query = input.value; filterRows(); }, rowCount > 20000 ? 120 : 0);
  });
  input.addEventListener('keydown', event => {
    if (event.key === 'Escape' && input.value) { input.value = ''; grid.query = ''; filterRows(); event.preventDefault(); }
    if (event.key === 'ArrowDown') { grid.node.focus(); if (grid.selected < 0 || !grid.order.includes(grid.selected)) select(0); event.preventDefault(); }
  });
  const states = [...new Set(table.kinds.map(stateName))];
  const chips = element('div', {class: 'chips', role: 'group', 'aria-label': 'Which tensors'});
  const chip = (title, state, mark) => chips.append(element('button', {type: 'button', 'data-state': state, 'data-mark': mark, 'aria-pressed': String(!state && !mark), text: shown(title),
    onclick: event => {
      grid.state = state; grid.mark = mark || '';
      for (const button of chips.children) button.setAttribute('aria-pressed', String(button === event.currentTarget));
      filterRows();
    }}));
  chip('All', '');
  if (states.length > 1) for (const state of states.slice(0, 8)) chip(state, state);
  for (const [mark, {tag}] of kMarks) if ((table.marks[mark] || []).length) chip(tag, '', mark);
  if (changes && changes.size) {
    for (const row of changes.keys()) {
      const list = marksOf.get(row) || [];
      marksOf.set(row, [...list, 'changed', ...(isRed(row) ? ['outside'] : [])]);
    }
    chip('changed', '', 'changed');
    if ([...changes.keys()].some(isRed)) chip('outside tolerance', '', 'outside');
  }
  const count = element('span', {class: 'count', role: 'status', 'aria-live': 'polite'});
  const shownColumns = allColumns();
  const head = element('div', {class: 'head-row cells', role: 'row', 'aria-rowindex': '1'});
  for (const column of shownColumns) {
    if (column.still) {
      head.append(element('div', {role: 'columnheader', class: 'still', text: column.title, title: 'By sign and power of two; grey: zero, or very small'}));
      continue;
    }
    const header = element('div', {role: 'columnheader', class: column.text ? '' : 'num', 'aria-sort': 'none'});
    header.append(element('button', {type: 'button', text: column.title, 'data-column': column.id, onclick: () => sortBy(column, header)}));
    head.append(header);
  }
  const body = element('div', {role: 'rowgroup', style: {position: 'relative'}}, head);
  const empty = element('div', {class: 'empty', text: 'No tensor is like that.', hidden: true});
  const node = element('div', {class: 'grid', role: 'table', tabindex: '0', 'aria-label': 'Tensors; arrow keys choose one', 'aria-colcount': String(shownColumns.length)}, body, empty);
  node.style.setProperty('--columns', shownColumns.map(column => column.width).join(' '));
  const fixed = shownColumns.slice(1).reduce((sum, column) => sum + parseInt(column.width, 10), 0);
  node.style.setProperty('--table-width', 270 + fixed + 'px');
  const detail = element('div', {class: 'detail', 'aria-live': 'polite', hidden: true});
  Object.assign(grid, {node, body, input, chips, count, detail, empty});
  node.addEventListener('scroll', renderRows, {passive: true});
  node.addEventListener('keydown', onGridKey);
  const paper = element('table', {class: 'on-paper'});
  const made = section('tensors', 'Tensors', '', element('div', {class: 'tools'}, input, chips, count), element('div', {class: 'browser'}, node, detail), paper);
  made.classList.add('long');
  node.style.height = Math.min(560, 40 + Math.max(rowCount, 3) * kRowHeight) + 'px';
  filterRows();
  new ResizeObserver(renderRows).observe(node);
  addEventListener('beforeprint', () => drawPaper(paper));
}
// The virtual table has few rows; paper gets the first of those that are chosen.
function drawPaper(paper) {
  const most = 400;
  paper.replaceChildren(element('thead', {}, element('tr', {}, ...kTableColumns.filter(kPaper).map(column => element('th', {class: column.text ? '' : 'num', text: column.title})))));
  const body = element('tbody', {});
  for (const row of grid.order.slice(0, most)) {
    body.append(element('tr', {}, element('td', {text: shown(names[nameOf[row]].slice(0, 400))}), ...kTableColumns.slice(1).filter(kPaper).map(column => element('td', {class: column.text ? '' : 'num', text: cellText(column.id, row)}))));
  }
  if (grid.order.length > most) body.append(element('tr', {}, element('td', {colspan: kTableColumns.length, text: '… and ' + (grid.order.length - most).toLocaleString('en') + ' more'})));
  paper.append(body);
}

// --- comparison with B ---

function kChangeText(part, row) {
  if (!changes.has(row)) return '=';
  const value = changes.get(row)[part];
  return Number.isNaN(value) ? '–' : numberText(value);
}
function changeCells(row) {
  return kChangeColumns.map(column => element('div', {role: 'cell', class: 'num' + (isRed(row) ? ' up' : changes.has(row) ? '' : ' same'), text: kChangeText(column.part, row)}));
}
function changeTexts(row) {
  if (!changes.has(row)) return [['in B', 'equal']];
  const change = changes.get(row), list = [['differ', change.different.toLocaleString('en') + ' of ' + elementsOf(row).toLocaleString('en')]];
  if (hasTolerance) list.push(['outside', change.outside.toLocaleString('en')]);
  for (const column of kChangeColumns) list.push([column.long, kChangeText(column.part, row)]);
  return list;
}
const typeText = side => side ? side.dtype + ' ' + shapeText(side.shape) : '–';
const kDifferences = new Map([['only_in_a', 'only here'], ['only_in_b', 'only in B'], ['dtype', 'other type'], ['shape', 'other shape'], ['key', 'other kind of key'], ['value', 'value']]);
function moduleRows() {
  const body = element('tbody', {});
  const most = Math.max(...comparison.modules.map(module => module.max_rel), 1e-300);
  for (const module of comparison.modules.slice(0, 300)) {
    const isBad = module.nonfinite > 0 || module.missing_or_type > 0;
    body.append(element('tr', {}, element('td', {class: 'mono', text: shown(module.module.slice(0, 300))}),
      element('td', {class: 'num', text: module.different + ' of ' + module.compared}),
      element('td', {class: 'num', text: numberText(module.max_abs)}),
      element('td', {class: 'num', text: numberText(module.max_rel)}),
      element('td', {class: 'num', text: module.one_minus_cosine === null ? '–' : numberText(module.one_minus_cosine)}),
      element('td', {class: 'num', text: module.norm_ratio === null ? '–' : numberText(module.norm_ratio)}),
      element('td', {class: 'meterCell'}, element('div', {class: 'meter'}, element('i', {style: {width: module.max_rel > 0 ? Math.max(2, 100 * Math.log1p(1e3 * module.max_rel / most) / Math.log1p(1e3)).toFixed(1) + '%' : '0'}}))),
      element('td', {}, isBad ? element('span', {class: 'tag bad', text: module.nonfinite ? 'NaN or Inf' : 'missing or type'}) : '')));
  }
  return body;
}
function drawChanges() {
  if (!comparison) return;
  const red = [...changes.keys()].filter(isRed).length;
  const path = shown(comparison.path);
  const said = comparison.equal ? 'Equal bit for bit to ' + path + '.'
    : `${comparison.tensors.different.toLocaleString('en')} of ${counted(comparison.tensors.compared, 'tensor')} and ${comparison.objects.length.toLocaleString('en')} of ${counted(comparison.object_count, 'object')} differ in ${path}.` +
      (hasTolerance ? ` Outside of the tolerance, ${numberText(comparison.atol)} + ${numberText(comparison.rtol)} |b|: ${counted(red, 'tensor')}.` : '');
  const lead = said + ' Only the first checkpoint was verified.';
  const parts = comparison.warnings.map(text => element('p', {class: 'muted', text: shown(text)}));
  if (comparison.modules.length) {
    parts.push(element('h3', {text: 'By module, the worst first'}), element('div', {class: 'scroll box', tabindex: '0', role: 'region', 'aria-label': 'Changes by module'},
      element('table', {}, element('thead', {}, element('tr', {}, ...['Module', 'Differ', 'Max abs', 'Max rel', '1 − cos', 'Norm ×', '', ''].map((title, i) => element('th', {scope: 'col', class: i > 0 && i < 6 ? 'num' : '', text: title})))), moduleRows())));
  }
  if (comparison.others.count) {
    const body = element('tbody', {});
    for (const other of comparison.others.first) {
      body.append(element('tr', {}, element('td', {}, element('span', {class: 'tag warn', text: kDifferences.get(other.kind)})), element('td', {class: 'mono', text: shown(other.key.slice(0, 2000))}),
        element('td', {text: typeText(other.a)}), element('td', {text: typeText(other.b)})));
    }
    parts.push(element('h3', {text: 'Tensors that are not on both sides, or are of another type: ' + comparison.others.count.toLocaleString('en')}),
      element('div', {class: 'scroll box', tabindex: '0', role: 'region', 'aria-label': 'Other tensors'}, element('table', {}, element('thead', {}, element('tr', {}, ...['', 'Tensor', 'Here', 'In B'].map(title => element('th', {scope: 'col', text: title})))), body)));
  }
  if (comparison.objects.length) {
    const body = element('tbody', {});
    for (const object of comparison.objects) {
      if (!object.details.length) body.append(element('tr', {}, element('td', {class: 'mono', text: shown(object.key)}), element('td', {colspan: 2}, element('span', {class: 'tag warn', text: kDifferences.get(object.kind)}))));
      for (const detail of object.details) {
        body.append(element('tr', {}, element('td', {class: 'mono', text: shown(object.key + ' ' + detail.pointer)}), element('td', {class: 'mono', text: shown(detail.a ?? 'absent')}), element('td', {class: 'mono', text: shown(detail.b ?? 'absent')})));
      }
      if (object.places > object.details.length) body.append(element('tr', {}, element('td', {colspan: 3, class: 'muted', text: shown(object.key) + ': ' + (object.places - object.details.length) + ' more places'})));
    }
    parts.push(element('h3', {text: 'Hyper-parameters and common state'}), element('div', {class: 'scroll box', tabindex: '0', role: 'region', 'aria-label': 'Common state'},
      element('table', {class: 'places'}, element('thead', {}, element('tr', {}, ...['Place', 'Here', 'In B'].map(title => element('th', {scope: 'col', text: title})))), body)));
  }
  const made = section('changes', 'Changes to B', lead, ...parts);
  made.classList.add('long');
}

// --- the iterations of the root ---

const kEvents = new Map([
  ['not_finite', event => 'has ' + counted(event.elements, 'NaN or infinite element')],
  ['stopped', event => 'is what it was at iteration ' + event.since + ', its moments are not zero'],
  ['zero_moment', () => 'is all zero'],
]);
// A line over the iterations, broken where one has no value. Changes of less than a thousandth look
// flat.
function curve(label, values) {
  const known = values.filter(value => value !== undefined && value !== null);
  if (known.length < 2) return element('span', {class: 'muted', text: known.length ? numberText(known[0]) : '–'});
  const width = 110, height = 26, pad = 3;
  const lowest = Math.min(...known), highest = Math.max(...known);
  const span = Math.max(highest - lowest, 1e-3 * Math.max(Math.abs(lowest), Math.abs(highest))) || 1;
  const low = (lowest + highest - span) / 2;
  const x = i => pad + (width - 2 * pad) * i / Math.max(values.length - 1, 1);
  const y = value => height - pad - (height - 2 * pad) * (value - low) / span;
  let path = '', isOpen = false;
  const picture = drawing('svg', {width, height, viewBox: `0 0 ${width} ${height}`, role: 'img',
    'aria-label': `${label}: ${numberText(known[0])} to ${numberText(known[known.length - 1])}`});
  values.forEach((value, i) => {
    if (value === undefined || value === null) { isOpen = false; return; }
    path += (isOpen ? 'L' : 'M') + x(i).toFixed(1) + ' ' + y(value).toFixed(1);
    isOpen = true;
    picture.append(drawing('circle', {cx: x(i), cy: y(value), r: 1.6}));
  });
  picture.prepend(drawing('path', {d: path}));
  const text = () => label + '\n' + data.lineage.iterations
    .map((row, i) => row.iteration + ': ' + numberText(values[i])).slice(-20).join('\n');
  return tipped(element('span', {class: 'curve'}, picture,
    element('small', {text: numberText(known[0]) + ' → ' + numberText(known[known.length - 1])})), text);
}
function lineageRows(rows) {
  const titles = ['Iteration', 'Status', 'On disk', 'Step', 'Learning rates', 'Loss scale', 'Norm of weights'];
  const body = element('tbody', {});
  for (const row of rows) {
    const tag = element('span', {class: 'tag ' + (row.complete ? 'good' : 'bad'), text: row.complete ? 'complete' : shown(row.health)});
    const problem = row.problem ? element('div', {class: 'muted', text: shown(row.problem)}) : null;
    const number = text => element('td', {class: 'num', text});
    body.append(element('tr', {}, number(String(row.iteration)), element('td', {}, tag, problem),
      number(row.bytes === undefined ? '–' : bytesText(row.bytes)), number(row.step === undefined ? '–' : String(row.step)),
      element('td', {text: row.learning_rates.map(numberText).join(', ') || '–'}), number(numberText(row.loss_scale)),
      number(numberText(row.norms && row.norms.weights))));
  }
  return element('div', {class: 'scroll box', tabindex: '0', role: 'region', 'aria-label': 'Iterations'},
    element('table', {}, element('thead', {}, element('tr', {}, ...titles.map((title, i) =>
      element('th', {scope: 'col', class: [1, 4].includes(i) ? '' : 'num', text: title})))), body));
}
function lineageCurves(rows) {
  const states = new Set(), modules = new Map();
  for (const row of rows) {
    for (const state of Object.keys((row.norms || {states: {}}).states)) states.add(state);
    for (const {module} of row.modules || []) modules.set(module, null);
  }
  const byModule = rows.map(row => new Map((row.modules || []).map(({module, norms}) => [module, norms])));
  const body = element('tbody', {});
  const add = (title, normsAt) => body.append(element('tr', {}, element('td', {class: 'mono', text: shown(title)}),
    element('td', {}, curve('weights of ' + shown(title), rows.map((_, i) => (normsAt(i) || {}).weights))),
    ...[...states].map(state => element('td', {}, curve(shown(state) + ' of ' + shown(title),
      rows.map((_, i) => (normsAt(i) || {states: {}}).states[state]))))));
  add('all', i => rows[i].norms);
  for (const module of modules.keys()) add(module, i => byModule[i].get(module));
  return element('div', {class: 'scroll box', tabindex: '0', role: 'region', 'aria-label': 'Norms by module'},
    element('table', {class: 'curves'}, element('thead', {}, element('tr', {}, ...['Module', 'weight', ...states].map(title =>
      element('th', {scope: 'col', text: shown(kStateNames.get(title) || title)})))), body));
}
function drawLineage() {
  if (!data.lineage) return;
  const {iterations, events, elsewhere} = data.lineage, parts = [lineageRows(iterations)];
  if (events.length) {
    const list = element('ul', {class: 'findings'}), kMost = 200;
    for (const event of events.slice(0, kMost)) {
      list.append(element('li', {}, element('span', {}, element('span', {class: 'tag warn', text: 'iteration ' + event.iteration})),
        element('div', {class: 'text'}, element('span', {class: 'mono', text: shown(event.key)}), ' ' + kEvents.get(event.kind)(event))));
    }
    if (events.length > kMost) list.append(element('li', {class: 'wide muted', text: 'and ' + (events.length - kMost) + ' more: ckpt-inspect lineage --verbose lists them'}));
    parts.push(element('h3', {text: 'First seen'}), list);
  }
  if (iterations.some(row => row.norms)) parts.push(element('h3', {text: 'L2 norms over the iterations'}), lineageCurves(iterations));
  const lead = elsewhere.length ? counted(elsewhere.length, 'more iteration') + ' of the root ' + (elsewhere.length === 1 ? 'is a link' : 'are links') + ' out of it and not shown.' : '';
  section('lineage', 'Iterations', lead, ...parts);
}

// --- args, proof, how it was made ---

function drawArgs() {
  if (!data.args || typeof data.args !== 'object') return;
  const entries = Object.entries(data.args);
  const input = element('input', {type: 'search', placeholder: 'Search arguments', 'aria-label': 'Search arguments', spellcheck: 'false'});
  const body = element('tbody', {});
  const rows = entries.map(([name, value]) => {
    const text = valueText(value);
    const node = element('tr', {}, element('td', {text: shown(name)}), element('td', {text: shown(text.length > 5000 ? text.slice(0, 5000) + '…' : text)}));
    body.append(node);
    return {node, text: (name + ' ' + text).toLowerCase()};
  });
  input.addEventListener('input', () => {
    const term = input.value.toLowerCase();
    for (const row of rows) row.node.hidden = !row.text.includes(term);
  });
  const made = section('args', 'Arguments of the run', '', element('div', {class: 'tools'}, input, element('span', {class: 'count', text: counted(entries.length, 'argument')})),
    element('div', {class: 'box', tabindex: '0', role: 'region', 'aria-label': 'Arguments'}, element('table', {}, body)));
  made.classList.add('args', 'long');
}
function drawProof() {
  if (!data.proof) return;
  const made = section('proof', 'Proof of the conversion', 'What shardwise-proof.json promises of this checkpoint.', element('pre', {tabindex: '0', text: shown2(JSON.stringify(data.proof, null, 2))}));
  made.classList.add('long');
}
const shown2 = text => text.split('\n').map(shown).join('\n');
function drawFoot() {
  const read = data.read, texts = [];
  texts.push(read.is_sample
    ? `Figures are from a sample: ${bytesText(read.looked_at_bytes)} of ${bytesText(read.tensor_bytes)} of tensors were read, spread evenly over each. Minima and maxima of the whole may lie further out.`
    : `All ${bytesText(read.looked_at_bytes)} of tensors were read once, for the checks and the figures together.`);
  texts.push('Mean, standard deviation and norm are over finite elements. Histograms count by sign and power of two. Made by ckpt-inspect report; the data is the JSON document in this file, as ckpt-inspect report --json prints it.');
  byId('foot').replaceChildren(...texts.map(text => element('p', {text})));
}

// --- light and dark, keys ---

function setTheme(theme) { document.documentElement.dataset.theme = theme; }
function startTheme() {
  const system = matchMedia('(prefers-color-scheme: dark)');
  let chosen = null;
  try { chosen = localStorage.getItem('ckpt-report-theme'); } catch { /* file: may have no storage */ }
  setTheme(chosen === 'dark' || chosen === 'light' ? chosen : system.matches ? 'dark' : 'light');
  system.addEventListener('change', () => { if (!chosen) setTheme(system.matches ? 'dark' : 'light'); });
  byId('theme').addEventListener('click', () => {
    chosen = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark';
    setTheme(chosen);
    try { localStorage.setItem('ckpt-report-theme', chosen); } catch { /* as above */ }
  });
}
startTheme();
byId('print').addEventListener('click', () => print());
addEventListener('scroll', hideTip, {passive: true});
document.addEventListener('keydown', event => {
  const isTyping = event.target instanceof HTMLInputElement;
  if (event.key === '/' && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    grid.input.focus();
    grid.input.select();
  }
});
drawTop();
drawVerdict();
drawAttention();
drawChanges();
drawTreemap();
drawRanks();
drawGroups();
drawLayers();
drawTable();
drawLineage();
drawArgs();
drawProof();
drawFoot();
document.documentElement.dataset.ready = 'true';
})();
