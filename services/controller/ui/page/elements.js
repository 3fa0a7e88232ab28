// The small parts that both the page and a job's report are made of. All text goes into text nodes,
// and is never parsed as HTML.

import { formatNumber } from './charts.js';

export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null) node.setAttribute(name, value === true ? '' : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== ''));
  return node;
}

export function formatDuration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return '–';
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1).replace('.0', '') : Math.floor(seconds)} s`;
  const units = [[86400, 'd'], [3600, 'h'], [60, 'm'], [1, 's']];
  const first = units.findIndex(([size]) => seconds >= size);
  const [size, name] = units[first], [nextSize, nextName] = units[first + 1];
  const rest = Math.floor(seconds % size / nextSize);
  return `${Math.floor(seconds / size)}${name}` + (rest ? ` ${rest}${nextName}` : '');
}

// A duration in whole seconds, which does not flicker from one answer to the next.
export function wholeSeconds(seconds) {
  return seconds < 1 ? '0 s' : formatDuration(Math.floor(seconds));
}

const two = (n) => String(n).padStart(2, '0');
// Without the date if it is today, unless `full` asks for it.
export function formatTime(seconds, full = false) {
  const t = new Date(seconds * 1000);
  const clock = `${two(t.getHours())}:${two(t.getMinutes())}:${two(t.getSeconds())}`;
  if (!full && t.toDateString() === new Date().toDateString()) return clock;
  return `${t.getFullYear()}-${two(t.getMonth() + 1)}-${two(t.getDate())} ${clock}`;
}

export const count = (n) => Math.round(n).toLocaleString('en-US');
export const shortId = (id) => id.slice(0, 8);

export const STATE_STYLE = {
  RUNNING: 'busy', STARTING: 'busy', FINISHING: 'busy', SUCCEEDED: 'good', FAILED: 'bad',
  RECOVERING: 'warn', WAITING: 'warn', PAUSED: 'warn', PAUSING: 'warn', up: 'good',
  suspect: 'warn', lost: 'bad', warning: 'warn', error: 'bad', alarm: 'bad',
};
export const chip = (text, style = STATE_STYLE[text] ?? '') => el('span', { class: `chip ${style}` }, text);

export const CONDITIONS = {
  Stalled: 'No step has ended for longer than limits.stall_warn.',
  Degraded: 'Fewer daemons work for the job than it may have; it goes on with them.',
  NoSignal: 'Ten steps in a row could teach nothing: all answers to a prompt got the same reward, or the gradient was 0.',
  EntropyCollapsed: 'The policy writes nearly the same answers each time, and has not solved its task.',
  RewardCollapsed: 'The reward has lost more than half of its best height.',
  OffPolicy: 'The policy is far from the one that sampled the data it is trained on.',
  LogProbMismatch: 'Trainer and rollout disagree about the probabilities of tokens under the same weights.',
};
// The phases of a step, in their order, as the trainer names them.
export const PHASES = [
  ['wait_data', 'wait for data'], ['forward_backward', 'forward and backward'], ['optim', 'optimizer'],
  ['apply', 'apply'], ['publish', 'publish'], ['checkpoint', 'checkpoint'],
];
export const ALARMING = new Set(['Stalled', 'EntropyCollapsed', 'RewardCollapsed', 'LogProbMismatch']);

export const card = (title, ...children) => el('section', { class: 'card pad' }, el('h2', {}, title), ...children);
export const headRow = (...names) => el('thead', {}, el('tr', {}, names.map((name) =>
    el('th', { class: name.startsWith('#') ? 'num' : false }, name.replace(/^#/, '')))));
export const eventRow = (event) => el('tr', {},
    el('td', { class: 'soft top-line time' }, formatTime(event.at)),
    el('td', { class: 'top-line' }, chip(event.severity)),
    el('td', { class: 'top-line' }, event.daemon || event.role),
    el('td', { class: 'top-line' }, el('code', {}, event.code)),
    el('td', { class: 'wait top-line' }, event.message, event.count > 1 ? el('span', { class: 'soft' }, ` ${event.count} times`) : null));

export function drawLedger({ ledger, final }) {
  const dropped = Object.values(ledger.dropped).reduce((sum, n) => sum + n, 0);
  const parts = [['durable', ledger.durable], ['applied', ledger.applied], ['live', ledger.live], ['dropped', dropped]];
  if (ledger.accepted === 0 && parts.every(([, n]) => n === 0))
    return el('p', { class: 'soft' }, 'No answer has been asked for yet.');
  const sum = parts.reduce((all, [, n]) => all + n, 0);
  const balanced = sum === ledger.accepted;
  const term = (name, n) => el('div', {}, el('b', {}, count(n)), el('span', {}, name));
  const split = el('div', { class: 'split', 'aria-hidden': 'true' }, parts.map(([, n], i) => {
    const part = el('i', { class: `b${[0, 1, 5, 4][i]}` });
    part.style.flexGrow = String(n);
    part.hidden = n === 0;
    return part;
  }));
  const reasons = Object.entries(ledger.dropped).filter(([, n]) => n > 0).map(([reason, n]) => `${reason} ${count(n)}`).join(', ');
  return [
    el('div', { class: 'sum' }, term('accepted', ledger.accepted), el('i', {}, '='),
        parts.flatMap(([name, n], i) => [i ? el('i', {}, '+') : null, term(name, n)])),
    split,
    el('p', {}, chip(balanced ? 'balanced' : 'out of balance', balanced ? 'good' : 'bad'),
        balanced ? '' : el('span', {}, ` accepted differs by ${count(ledger.accepted - sum)}; run sluice queue fsck`)),
    el('p', { class: 'soft' }, `Answers that rollouts were asked for${final ? ', at the end' : ''}. `,
        `${formatNumber(ledger.tokens_generated)} tokens sampled, ${formatNumber(ledger.tokens_trained)} trained.`,
        reasons ? ` Dropped: ${reasons}.` : ''),
  ];
}
