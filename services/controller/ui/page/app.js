// The page of the controller: jobs, one job, daemons. It asks the controller once a second and
// shows the answer.

import { Chart, formatNumber, sparkline } from './charts.js';
import {
  ALARMING, CONDITIONS, PHASES, STATE_STYLE, card, chip, count, drawLedger, el, eventRow,
  formatDuration, formatTime, headRow, shortId, wholeSeconds,
} from './elements.js';

const POLL_MS = 1000;
const PATIENCE_MS = 6000;  // After this long without an answer the controller counts as gone.
const WHY_MS = 2000;
const PAGE = 50;           // Jobs on one page of the list.
const MAX_EVENTS = 200;

const main = document.getElementById('main');

// Replaces the children of `parent` by one node per item. A node whose item has not changed stays,
// so that selected text and the place of the mouse do.
function keep(parent, items, keyOf, make) {
  const old = new Map([...parent.children].map((node) => [node.itemKey, node]));
  const nodes = items.map((item) => {
    const key = keyOf(item), text = JSON.stringify(item), known = old.get(key);
    if (known && known.itemText === text) return known;
    const node = make(item);
    node.itemKey = key;
    node.itemText = text;
    return node;
  });
  if (nodes.length !== parent.children.length || nodes.some((node, i) => parent.children[i] !== node))
    parent.replaceChildren(...nodes);
}

// Replaces the children of `parent` unless they were made from the same data.
function renew(parent, data, make) {
  const text = JSON.stringify(data);
  if (parent.madeFrom === text) return;
  parent.madeFrom = text;
  parent.replaceChildren(...[make(data)].flat().filter((child) => child !== null && child !== ''));
}

async function ask(path, parameters = {}) {
  const url = new URL(`/ui/api/${path}`, location.origin);
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== '' && value !== undefined) url.searchParams.set(name, value);
  }
  const response = await fetch(url, { signal: AbortSignal.timeout(PATIENCE_MS), cache: 'no-store' });
  const answer = await response.json();
  if (response.ok) return answer;
  const error = new Error(answer.error ?? `status ${response.status}`);
  error.status = response.status;
  throw error;
}

const progressBar = (share, more = '') => {
  const fill = el('i');
  fill.style.width = `${Math.min(100, Math.max(0, share * 100))}%`;
  return el('div', { class: `bar ${more}` }, fill);
};

// --- The list of jobs.

class JobsView {
  constructor() {
    this.skip = 0;
    this.show = 'all';
    this.find = '';
    this.tiles = el('div', { class: 'tiles' });
    this.search = el('input', {
      type: 'search', placeholder: 'Name, id or owner', 'aria-label': 'Find jobs', spellcheck: 'false',
      oninput: () => { this.find = this.search.value.trim(); this.skip = 0; poll(); },
    });
    this.choice = el('div', { class: 'choice', role: 'group', 'aria-label': 'Which jobs' },
        ['all', 'live', 'ended'].map((show) => el('button', {
          type: 'button', 'data-show': show,
          onclick: () => { this.show = show; this.skip = 0; poll(); },
        }, show[0].toUpperCase() + show.slice(1))));
    this.range = el('span');
    this.newer = el('button', { type: 'button', onclick: () => this.turn(-PAGE) }, 'Newer');
    this.older = el('button', { type: 'button', onclick: () => this.turn(PAGE) }, 'Older');
    this.rows = el('tbody', { id: 'jobs' });
    this.nothing = el('p', { class: 'none', hidden: true }, 'No job matches.');
    this.list = el('div', {},
        el('div', { class: 'tools' }, this.search, this.choice,
            el('div', { class: 'pages' }, this.range, el('div', { class: 'choice' }, this.newer, this.older))),
        el('div', { class: 'card scroll' },
            el('table', {}, headRow('Job', 'State', 'Step', '#Reward', '', '#Tokens/s', '#Age', 'Waits for'), this.rows),
            this.nothing));
    this.start = el('div');
    this.node = el('div', {}, this.tiles, this.list, this.start);
  }

  turn(by) {
    this.skip = Math.max(0, this.skip + by);
    poll();
  }

  async update() {
    const asked = { limit: PAGE, skip: this.skip, show: this.show, find: this.find };
    const list = await ask('jobs', asked);
    const all = Object.values(list.states).reduce((sum, n) => sum + n, 0);
    const empty = all === 0;
    this.list.hidden = empty;
    this.start.hidden = !empty;
    this.drawTiles(list);
    if (empty) return renew(this.start, hasFleet(list.fleet), firstSteps);
    for (const button of this.choice.children)
      button.setAttribute('aria-pressed', String(button.dataset.show === this.show));
    const end = this.skip + list.jobs.length;
    this.range.textContent = list.total === 0 ? '' : `${count(this.skip + 1)}–${count(end)} of ${count(list.total)}`;
    this.newer.disabled = this.skip === 0;
    this.older.disabled = end >= list.total;
    this.nothing.hidden = list.total > 0;
    const now = Date.now() / 1000;
    const rows = list.jobs.map((job) => ({ ...job, age: wholeSeconds(now - job.created), ran_s: 0 }));
    keep(this.rows, rows, (job) => job.id, jobRow);
  }

  drawTiles(list) {
    const states = list.states, of = (...names) => names.reduce((sum, n) => sum + (states[n] ?? 0), 0);
    const fleet = Object.values(list.fleet);
    const daemons = (what) => fleet.reduce((sum, role) => sum + role[what], 0);
    const speed = list.jobs.reduce((sum, job) => sum + (job.ended ? 0 : job.tokens_per_s ?? 0), 0);
    // Those that left in an orderly way are not missed.
    const lost = daemons('lost'), suspect = daemons('suspect'), failed = of('FAILED');
    const tiles = [
      ['Running', count(of('RUNNING')), of('RECOVERING') ? `${of('RECOVERING')} recovering` : '', true],
      ['Waiting or starting', count(of('WAITING', 'STARTING')), of('PAUSED', 'PAUSING') ? `${of('PAUSED', 'PAUSING')} paused` : '', false],
      ['Ended', count(of('SUCCEEDED', 'CANCELLED', 'FAILED')), failed ? `${count(failed)} failed` : '', true],
      ['Tokens trained per second', formatNumber(speed), '', false],
      ['Daemons up', count(daemons('up')), [lost && `${lost} lost`, suspect && `${suspect} silent`].filter(Boolean).join(', '), true],
    ];
    keep(this.tiles, tiles, (tile) => tile[0], ([name, value, note, bad]) =>
        el('div', { class: 'card tile' }, el('b', {}, value), el('span', {}, name),
            note ? el('span', { class: bad ? 'bad' : '' }, ` · ${note}`) : null));
  }
}

function jobRow(job) {
  const share = job.of ? job.step / job.of : null;
  return el('tr', {},
      el('td', {}, el('a', { class: 'name', href: `#/job/${job.id}` }, job.name),
          el('span', { class: 'under' }, [shortId(job.id), job.owner].filter(Boolean).join(' · '))),
      el('td', {}, chip(job.state), job.conditions.map((name) => chip(name, ALARMING.has(name) ? 'bad' : 'warn'))),
      el('td', {}, `${count(job.step)}`, el('span', { class: 'soft' }, job.of ? ` / ${count(job.of)}` : ''),
          share === null ? null : progressBar(share, 'cell-bar')),
      el('td', { class: 'num' }, job.reward === null ? '–' : job.reward.toFixed(3)),
      el('td', {}, sparkline(job.spark)),
      el('td', { class: 'num' }, formatNumber(job.tokens_per_s)),
      el('td', { class: 'num soft' }, job.age),
      el('td', { class: 'wait' }, job.waits || (job.state === 'FAILED' ? [job.code, job.message].filter(Boolean).join(': ') : '')));
}

const hasFleet = (fleet) => Object.values(fleet).some((role) => role.up > 0);

function firstSteps(fleet) {
  const example = 'sluice job submit configs/examples/digits.yaml';
  return el('div', { class: 'card start' },
      el('h1', {}, 'No jobs yet'),
      fleet ? el('p', { class: 'soft' }, 'The daemons are up and wait for work. In a terminal, submit the example; it trains a small model in about a minute:')
            : el('p', { class: 'soft' }, 'No daemons have registered yet. On one machine, this starts all of them:'),
      el('pre', {}, fleet ? example : 'sluice dev up'),
      fleet ? el('p', { class: 'soft' }, 'For a job of your own, copy an example of configs/examples and name your model and your data in it. This lists every key that a job may have:')
            : el('p', { class: 'soft' }, 'Then submit the example:'),
      el('pre', {}, fleet ? 'sluice config defaults' : example),
      el('p', { class: 'soft' }, 'This page shows the job a second later.'));
}

// --- One job.

class JobView {
  constructor(id) {
    this.id = id;
    this.cursor = '';
    this.afterEvent = 0;
    this.events = [];
    this.steps = { k: [], at: [], values: {} };
    this.nextWhy = 0;
    this.why = null;
    const chart = (title, unit, more = {}) => new Chart({ title, unit, ...more });
    this.charts = {
      reward: chart('Reward', 'mean of a step'),
      entropy: chart('Entropy', 'nats per token', { fromZero: true }),
      staleness: chart('Staleness', 'versions; dashed: the bound', { fromZero: true }),
      tokens: chart('Tokens per second', 'trained', { fromZero: true }),
      phases: chart('Time by phase', 'seconds of a step', { stacked: true }),
      grad: chart('Gradient norm', 'before clipping', { fromZero: true }),
    };
    this.head = el('div');
    this.banners = el('div');
    this.chain = el('div');
    this.ledger = el('div');
    this.workers = el('tbody');
    this.queue = el('div');
    this.eventRows = el('tbody', { id: 'events' });
    this.node = el('div', {},
        el('a', { class: 'crumb', href: '#/' }, '← Jobs'), this.head, this.banners,
        el('div', { class: 'charts' }, Object.values(this.charts).map((one) => one.node)),
        el('div', { class: 'pair' },
            el('div', { class: 'stack' }, card('Who waits for whom', this.chain),
                el('section', { class: 'card' }, el('h2', {}, 'Daemons of this job'),
                    el('div', { class: 'scroll' }, el('table', {}, headRow('Daemon', 'State', 'Phase', '#Version'), this.workers)))),
            el('div', { class: 'stack' }, card('Ledger', this.ledger), card('Queue', this.queue))),
        el('section', { class: 'card' }, el('h2', {}, 'Events'),
            el('div', { class: 'scroll' }, el('table', {}, headRow('Time', 'Severity', 'From', 'Event', 'Message'), this.eventRows))));
  }

  async update() {
    let job;
    do {
      job = await ask(`jobs/${encodeURIComponent(this.id)}`, { cursor: this.cursor, after_event: this.afterEvent });
      this.takeSteps(job.steps);
      this.takeEvents(job.events);
    } while (job.steps.more);
    document.title = `${job.name} · Sluice`;
    renew(this.head, headData(job), drawHead);
    renew(this.banners, bannerData(job, this.events), drawBanners);
    this.drawCharts(job);
    keep(this.workers, job.workers, (worker) => worker.id, workerRow);
    keep(this.eventRows, this.events, (event) => event.seq, eventRow);
    if (Date.now() >= this.nextWhy) this.askWhy(job);
    this.drawWaits(job);
  }

  // Asked for beside the rest, because daemons that are silent make the answer slow.
  async askWhy(job) {
    this.nextWhy = Infinity;
    try {
      const why = await ask(`jobs/${job.id}/why`);
      if (!why.busy) this.why = why;
    } catch {
      this.why = null;  // The page says by itself when the controller is gone.
    }
    this.nextWhy = Date.now() + WHY_MS;
    this.drawWaits(job);
  }

  takeSteps(page) {
    const { steps } = this;
    const kept = steps.k.findIndex((k) => k >= page.from);
    if (kept >= 0) {
      for (const list of [steps.k, steps.at, ...Object.values(steps.values)]) list.length = kept;
    }
    const before = steps.k.length;
    steps.k.push(...page.k);
    steps.at.push(...page.at);
    for (const name of new Set([...Object.keys(steps.values), ...Object.keys(page.values)])) {
      const list = steps.values[name] ??= new Array(before).fill(null);
      list.push(...(page.values[name] ?? new Array(page.k.length).fill(null)));
    }
    this.cursor = page.cursor;
    this.stepsChanged = this.stepsChanged || page.k.length > 0 || kept >= 0;
  }

  takeEvents(events) {
    const fresh = events.filter((event) => event.seq > this.afterEvent).reverse();
    if (fresh.length === 0) return;
    this.afterEvent = fresh[0].seq;
    this.events = [...fresh, ...this.events].slice(0, MAX_EVENTS);
  }

  drawCharts(job) {
    if (this.drawn && !this.stepsChanged) return;
    this.drawn = true;
    this.stepsChanged = false;
    const { k, values } = this.steps;
    const of = (name) => values[name] ?? [];
    const draw = (chart, series, bound = null) => chart.draw({ steps: k, series, bound });
    const { charts } = this;
    draw(charts.reward, [{ name: 'mean', values: of('reward_mean') }]);
    draw(charts.entropy, [{ name: 'entropy', values: of('entropy') }]);
    draw(charts.staleness, [{ name: 'highest', values: of('staleness_max') }, { name: 'mean', values: of('staleness_mean') }], job.max_staleness);
    draw(charts.tokens, [{
      name: 'tokens/s',
      values: of('tokens').map((n, i) => {
        const seconds = of('seconds_step')[i];
        return n === null || !seconds ? null : n / seconds;
      }),
    }]);
    draw(charts.phases, PHASES.map(([name, text]) => ({ name: text, values: of(`seconds_${name}`) })));
    draw(charts.grad, [{ name: 'norm', values: of('grad_norm') }]);
  }

  drawWaits(job) {
    renew(this.chain, { chain: this.why?.chain ?? null, moving: job.moving, ended: job.ended, state: job.state, waits: job.waits }, drawChain);
    const queue = this.why?.queue ?? null;
    renew(this.ledger, { ledger: queue?.ledger ?? job.ledger, final: job.ended }, drawLedger);
    renew(this.queue, { queue, ended: job.ended }, drawQueue);
  }
}

function headData(job) {
  const age = wholeSeconds(job.ran_s);
  return { ...job, events: 0, steps: 0, workers: 0, waits: 0, ran_s: 0, state_s: 0, ledger: 0, age, left: job.left_s === null ? '' : wholeSeconds(job.left_s), left_s: 0 };
}

function drawHead(job) {
  const fact = (name, value) => value ? el('span', {}, `${name} `, el('b', {}, value)) : null;
  const notes = [
    job.step_s === null ? '' : `${formatDuration(job.step_s)} per step`,
    job.left && `about ${job.left} left`,
  ].filter(Boolean).join(' · ');
  return [
    el('div', { class: 'head' }, el('h1', {}, job.name), chip(job.state)),
    el('div', { class: 'facts' },
        fact('job', shortId(job.id)), fact('by', job.owner), fact('submitted', formatTime(job.created)),
        fact('ran', job.age === '0 s' ? '' : job.age), fact('version', job.version),
        fact('checkpoint', job.checkpoint),
        fact('restarts', Object.entries(job.restarts).filter(([, n]) => n > 0).map(([role, n]) => `${role} ${n}`).join(', ')),
        job.eval ? fact('evaluation', `${job.eval.first.toFixed(3)} → ${job.eval.last.toFixed(3)}, best ${job.eval.best.toFixed(3)} at version ${job.eval.best_version}`) : null),
    el('div', { class: 'progress' },
        job.of ? progressBar(job.step / job.of) : null,
        el('p', {}, el('span', {}, job.of ? `step ${count(job.step)} of ${count(job.of)}` : `step ${count(job.step)}, without a limit`),
            el('span', {}, notes))),
  ];
}

function bannerData(job, events) {
  const banners = job.conditions.map((name) => ({ title: name, text: CONDITIONS[name] ?? '', style: ALARMING.has(name) ? 'bad' : '' }));
  if (job.message)
    banners.push({ title: job.code, text: job.message, style: job.state === 'FAILED' ? 'bad' : '' });
  const alarm = events.find((event) => event.severity === 'alarm');
  if (alarm && !job.conditions.length) banners.push({ title: `Alarm at ${formatTime(alarm.at)}`, text: alarm.message, style: 'bad' });
  for (const text of job.warnings) banners.push({ title: '', text, style: '' });
  return banners;
}

const drawBanners = (banners) => banners.map(({ title, text, style }) =>
    el('p', { class: `banner ${style}`, role: 'status' }, title ? el('b', {}, title) : null, text));

const workerRow = (worker) => el('tr', {},
    el('td', {}, el('span', { class: 'name' }, worker.id), el('span', { class: 'under' }, worker.role)),
    el('td', {}, chip(worker.state), worker.ready === false ? chip('not ready', 'warn') : null),
    el('td', {}, worker.phase || '–'),
    el('td', { class: 'num' }, worker.version === null ? '–' : count(worker.version)));

const nodeName = (node) => node.kind === 'daemon' ? node.id : [node.kind, node.kind === 'job' ? '' : node.id].filter(Boolean).join(' ');
const sameNode = (a, b) => a.kind === b.kind && a.id === b.id && a.daemon === b.daemon;

function drawChain({ chain, moving, ended, state, waits }) {
  if (ended) return el('p', { class: 'soft' }, `The job is ${state} and waits for nothing.`);
  if (chain === null) return el('p', { class: 'soft' }, waits || 'Asking the daemons.');
  if (chain.length === 0) return el('p', { class: 'soft' }, waits || 'The job waits for nothing that its daemons report.');
  const last = chain[chain.length - 1];
  const fault = sameNode(last.waiter, last.on);
  const items = chain.map((edge, i) => {
    const root = fault && i === chain.length - 1;
    return el('li', { class: root ? 'fault' : false },
        el('span', { class: 'who' }, nodeName(edge.waiter)),
        edge.waiter.daemon && edge.waiter.daemon !== edge.waiter.id ? el('span', { class: 'soft' }, ` at ${edge.waiter.daemon}`) : null,
        edge.since_s >= 1 ? el('span', { class: 'since' }, `for ${wholeSeconds(edge.since_s)}`) : null,
        el('p', {}, edge.cause || `waits for ${nodeName(edge.on)}`));
  });
  if (!fault) {
    items.push(el('li', { class: moving ? false : 'root' }, el('span', { class: 'who' }, nodeName(last.on)),
        last.on.daemon && last.on.daemon !== last.on.id ? el('span', { class: 'soft' }, ` at ${last.on.daemon}`) : null));
  }
  const next = chain.findLast((edge) => edge.next), hint = chain.findLast((edge) => edge.hint);
  return [
    moving ? el('p', { class: 'soft' }, 'Steps advance. At this moment:') : null,
    el('ol', { class: 'chain' }, items),
    next || hint ? el('div', { class: 'advice' },
        next ? el('p', {}, el('b', {}, 'By itself: '), next.next_in_s === null ? '' : `in ${formatDuration(next.next_in_s)} `, next.next) : null,
        hint ? el('p', {}, el('b', {}, 'You could: '), hint.hint) : null) : null,
  ];
}

function drawQueue({ queue, ended }) {
  if (ended) return el('p', { class: 'soft' }, 'The queue has freed the data of this job.');
  if (!queue) return el('p', { class: 'soft' }, 'The queue has not answered.');
  const list = (map) => Object.entries(map).filter(([, n]) => n > 0).map(([name, n]) => `${name.replaceAll('_', ' ')} ${formatNumber(n)}`).join(', ') || 'none';
  const fact = (name, value) => [el('dt', {}, name), el('dd', {}, value)];
  return el('dl', {}, fact('Version', `${count(queue.version)}${queue.lowest >= 0 ? `, the oldest engine has ${count(queue.lowest)}` : ''}`),
      fact('Groups', list(queue.groups)), fact('Slots', list(queue.slots)), fact('Bytes', list(queue.bytes)),
      fact('Waiting calls', list(queue.waiting)), queue.advice ? fact('Staleness', queue.advice) : []);
}

// --- The daemons.

class DaemonsView {
  constructor() {
    this.rows = el('tbody', { id: 'daemons' });
    this.nothing = el('p', { class: 'none', hidden: true }, 'No daemon has registered. On one machine, `sluice dev up` starts all of them.');
    this.node = el('div', { class: 'card scroll' },
        el('table', {}, headRow('Daemon', 'Role', 'State', 'Address', 'Jobs', 'Load', '#Last heartbeat'), this.rows), this.nothing);
  }

  async update() {
    const { daemons } = await ask('daemons');
    document.title = 'Daemons · Sluice';
    this.nothing.hidden = daemons.length > 0;
    const rows = daemons.map((daemon) => ({ ...daemon, silent_s: 0, silent: wholeSeconds(daemon.silent_s) }));
    keep(this.rows, rows, (daemon) => daemon.id, daemonRow);
  }
}

function daemonRow(daemon) {
  const load = Object.entries(daemon.load).map(([name, value]) => `${name} ${formatNumber(value)}`).join(', ');
  const jobs = daemon.jobs.slice(0, 4).flatMap((job, i) => [i ? ', ' : '', el('a', { class: 'name', href: `#/job/${job.id}` }, job.name)]);
  return el('tr', {},
      el('td', {}, el('span', { class: 'name' }, daemon.id), el('span', { class: 'under' }, `build ${daemon.build}, incarnation ${daemon.incarnation}`)),
      el('td', {}, daemon.role),
      el('td', {}, chip(daemon.state === 'suspect' ? 'silent' : daemon.state, STATE_STYLE[daemon.state]), daemon.draining ? chip('draining', 'warn') : null),
      el('td', {}, el('code', {}, daemon.addresses.grpc ?? '–')),
      el('td', { class: 'wait' }, jobs.length ? jobs : '–', daemon.jobs.length > 4 ? ` and ${daemon.jobs.length - 4} more` : ''),
      el('td', { class: 'wait soft' }, load || '–'),
      el('td', { class: 'num soft' }, daemon.silent));
}

// --- Which view is shown, and the polling.

const jobsView = new JobsView();  // It stays, with its search and its page.
let view = null;

function openView() {
  const [, first, id] = location.hash.split('/');
  document.title = 'Sluice';
  view = first === 'job' && id ? new JobView(decodeURIComponent(id)) : first === 'daemons' ? new DaemonsView() : jobsView;
  for (const link of document.querySelectorAll('.top nav a')) {
    const here = link.dataset.view === (view instanceof DaemonsView ? 'daemons' : 'jobs');
    link.classList.toggle('here', here);
  }
  main.replaceChildren(view.node);
  window.scrollTo(0, 0);
  poll();
}

const link = document.getElementById('link'), lost = document.getElementById('lost');
let answered = Date.now();

function showAnswered() {
  answered = Date.now();
  link.className = 'live';
  link.textContent = `updated ${formatTime(answered / 1000)}`;
  lost.hidden = true;
  main.classList.remove('stale');
}

function showFailure(error) {
  link.className = 'gone';
  link.textContent = 'no answer';
  lost.hidden = false;
  if (error.status === 404) {
    lost.textContent = `${error.message}.`;
    return;
  }
  main.classList.add('stale');
  lost.textContent = `The controller does not answer, since ${formatTime(answered / 1000)}` +
      `${error.status ? ` (${error.message})` : ''}. What is below is as it was then. Jobs go on without it; this page asks again every second.`;
}

let timer = 0, round = 0;
async function poll() {
  clearTimeout(timer);
  const mine = ++round, asked = view;
  try {
    await asked.update();
    if (mine === round) showAnswered();
  } catch (error) {
    if (mine === round) showFailure(error);
  }
  if (mine === round) timer = setTimeout(poll, document.hidden ? 5 * POLL_MS : POLL_MS);
}

window.addEventListener('hashchange', openView);
document.addEventListener('visibilitychange', () => { if (!document.hidden) poll(); });
openView();
