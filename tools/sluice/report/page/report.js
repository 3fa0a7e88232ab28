// The report of one job: what the controller knew of it when the report was made.

import { Chart, formatNumber } from './charts.js';
import {
  ALARMING, CONDITIONS, PHASES, card, chip, count, drawLedger, el, eventRow, formatDuration,
  formatTime, headRow, shortId,
} from './elements.js';

const MOST_EVENTS = 1000;  // Older ones are left out, which the report says.

const data = JSON.parse(document.getElementById('data').textContent);
const { status, steps, events } = data;
const result = status.result;

const column = (name) => steps.values[name] ?? [];
const ratio = (above, below) => column(above).map((n, i) => {
  const divisor = column(below)[i];
  return n === null || !divisor ? null : n / divisor;
});
const sum = (values) => values.reduce((all, n) => all + (n ?? 0), 0);
const mean = (values) => {
  const known = values.filter((n) => n !== null);
  return known.length ? sum(known) / known.length : null;
};
const fixed = (value) => value === null || value === undefined ? '–' : value.toFixed(3);

// --- What the report says first.

function drawHead() {
  const fact = (name, value) => value ? el('span', {}, `${name} `, el('b', {}, value)) : null;
  const { model, algorithm, queue } = data.spec;
  return [
    el('div', { class: 'head' }, el('h1', {}, data.name), chip(status.state)),
    el('div', { class: 'facts' },
        fact('job', shortId(status.job)), fact('by', status.owner),
        fact('submitted', formatTime(data.created, true)),
        fact('report made', formatTime(data.made, true)),
        fact('model', model?.path || model?.init?.config), fact('algorithm', algorithm?.preset),
        fact('staleness bound', String(queue?.max_staleness ?? '')),
        fact('checkpoint', result?.checkpoint)),
  ];
}

function drawBanners() {
  const banner = (title, text, bad) => el('p', { class: bad ? 'banner bad' : 'banner' },
      title ? el('b', {}, title) : null, text);
  return [
    ...(status.message ? [banner(status.code, status.message, status.state === 'FAILED')] : []),
    ...status.conditions.map((name) => banner(name, CONDITIONS[name] ?? '', ALARMING.has(name))),
    ...(result?.warnings ?? []).map((text) => banner('', text, false)),
  ];
}

function drawTiles() {
  const rewards = column('reward_mean');
  const ran = result?.seconds ?? (steps.at.length ? steps.at.at(-1) - steps.at[0] : null);
  const restarts = result ? sum(Object.values(result.restarts)) : new Set(steps.incarnation).size - 1;
  const tiles = [
    ['Steps', count(status.step)],
    ['Reward, first and last 10 steps', result
        ? `${fixed(result.reward_first)} → ${fixed(result.reward_last)}`
        : `${fixed(mean(rewards.slice(0, 10)))} → ${fixed(mean(rewards.slice(-10)))}`],
    ['Tokens trained', formatNumber(result?.tokens_trained ?? sum(column('tokens')))],
    ['Ran', formatDuration(ran)],
    ['Restarts', count(Math.max(0, restarts))],
  ];
  return el('div', { class: 'tiles' }, tiles.map(([name, value]) =>
      el('div', { class: 'card tile' }, el('b', {}, value), el('span', {}, name))));
}

// --- The plots. Those without a value in any step are left out.

const PLOTS = [
  ['Reward', 'of a step', {}, [['mean', 'reward_mean'], ['lowest', 'reward_min'], ['highest', 'reward_max']]],
  ['Evaluation', 'mean reward', {}, [['score', 'eval/score']]],
  ['Loss', '', {}, [['loss', 'loss']]],
  ['Loss of the critic', 'per token', { fromZero: true }, [['loss', 'value_loss']]],
  ['Critic', 'share of the variance that it explains', {}, [['explained', 'explained_variance']]],
  ['Preferred answers', 'share of the pairs', { fromZero: true }, [['accuracy', 'dpo_accuracy']]],
  ['Reward of the answers', 'implied by the policy (DPO)', {}, [['chosen', 'dpo_reward_chosen'], ['rejected', 'dpo_reward_rejected']]],
  ['Answer length', 'trained tokens of an answer', { fromZero: true }, [['tokens', () => ratio('tokens', 'sequences')]]],
  ['Staleness', 'versions; dashed: the bound', { fromZero: true }, [['highest', 'staleness_max'], ['mean', 'staleness_mean']]],
  ['KL to the reference', 'nats per token', { fromZero: true }, [['KL', 'kl'], ['in the reward', 'reward_kl']]],
  ['KL to the sampling policy', 'nats per token, k3', { fromZero: true }, [['policy', 'kl_behav_theta_k3'], ['proximal policy', 'kl_behav_prox_k3']]],
  ['Effective sample size', 'share of the sequences', { fromZero: true }, [['ESS', 'ess_seq'], ['proximal weights', 'ess_seq_w']]],
  ['Entropy', 'nats per token', { fromZero: true }, [['entropy', 'entropy']]],
  ['Clipped tokens', 'share', { fromZero: true }, [['high', 'clip_high'], ['low', 'clip_low'], ['dual', 'clip_dual']]],
  ['Groups without signal', 'share with equal rewards', { fromZero: true }, [['share', 'flat_share']]],
  ['Log-prob difference', 'trainer to rollout, nats', { fromZero: true }, [['mean', 'absdiff_mean'], ['largest', 'absdiff_max']]],
  ['Gradient norm', 'before clipping', { fromZero: true }, [['norm', 'grad_norm']]],
  ['Learning rate', '', { fromZero: true }, [['rate', 'lr']]],
  ['Tokens per second', 'trained', { fromZero: true }, [['tokens/s', () => ratio('tokens', 'seconds_step')]]],
  ['Time by phase', 'seconds of a step', { stacked: true }, PHASES.map(([name, text]) => [text, `seconds_${name}`])],
];

function drawPlots() {
  const figures = PLOTS.flatMap(([title, unit, form, sources]) => {
    const series = sources
        .map(([name, source]) => ({ name, values: typeof source === 'string' ? column(source) : source() }))
        .filter(({ values }) => values.some((n) => n !== null));
    if (series.length === 0) return [];
    const chart = new Chart({ title, unit, ...form });
    const bound = title === 'Staleness' ? data.spec.queue?.max_staleness ?? null : null;
    chart.draw({ steps: steps.k, series, bound });
    return [chart.node];
  });
  return figures.length ? el('div', { class: 'charts' }, figures)
                        : el('p', { class: 'none' }, 'The controller has no step of this job.');
}

// --- Tables.

function drawTime() {
  const parts = PHASES.map(([name, text]) => [text, sum(column(`seconds_${name}`))]);
  const all = sum(column('seconds_step'));
  const rest = all - sum(parts.map(([, seconds]) => seconds));
  const rows = [...parts, ['other', Math.max(0, rest)]].filter(([, seconds]) => seconds > 0);
  return el('section', { class: 'card' }, el('h2', {}, 'Where the trainer spent its time'),
      el('table', {}, headRow('Phase', '#Time', '#Share'), el('tbody', { id: 'time' }, rows.map(([name, seconds]) =>
          el('tr', {}, el('td', {}, name), el('td', { class: 'num' }, formatDuration(seconds)),
              el('td', { class: 'num' }, all > 0 ? `${(100 * seconds / all).toFixed(1)} %` : '–'))))));
}

// Which group of trainers trained which steps, and from which checkpoint it went on.
function drawLineage() {
  const groups = new Map();
  steps.k.forEach((k, i) => {
    const group = groups.get(steps.incarnation[i]);
    if (group) group.last = k;
    else groups.set(steps.incarnation[i], { first: k, last: k, at: steps.at[i] });
  });
  const loaded = events.filter((event) => event.code === 'checkpoint_loaded');
  const rows = [...groups].sort(([a], [b]) => a - b).map(([incarnation, group]) => {
    const from = group.first === 0 ? null : loaded.findLast((event) => event.at <= group.at);
    return el('tr', {}, el('td', { class: 'num' }, count(incarnation)),
        el('td', {}, `${count(group.first)}–${count(group.last)}`),
        el('td', { class: 'wait' }, from ? from.message : 'the initial model'));
  });
  const written = events.filter((event) => event.code === 'checkpoint');
  const note = written.length ? `${count(written.length)} checkpoints written, the last one ${written.at(-1).message}.`
                              : 'No checkpoint was written.';
  return el('section', { class: 'card' }, el('h2', {}, 'Lineage of the weights'),
      el('table', {}, headRow('#Trainer group', 'Steps', 'Went on from'), el('tbody', { id: 'lineage' }, rows)),
      el('p', { class: 'none' }, note));
}

function drawStaleness() {
  const tokens = result?.staleness_histogram ?? {};
  const all = sum(Object.values(tokens));
  if (all === 0) return null;
  const rows = Object.entries(tokens).sort(([a], [b]) => Number(a) - Number(b));
  return el('section', { class: 'card' }, el('h2', {}, 'Staleness of the trained tokens'),
      el('table', {}, headRow('#Versions', '#Tokens', '#Share'), el('tbody', {}, rows.map(([versions, n]) =>
          el('tr', {}, el('td', { class: 'num' }, versions), el('td', { class: 'num' }, formatNumber(n)),
              el('td', { class: 'num' }, `${(100 * n / all).toFixed(1)} %`))))));
}

function drawEvents() {
  const faults = events.filter((event) => event.severity !== 'info');
  const table = (id, list) => el('div', { class: 'scroll' }, el('table', {},
      headRow('Time', 'Severity', 'From', 'Event', 'Message'),
      el('tbody', { id }, list.slice(-MOST_EVENTS).map(eventRow))));
  const title = (text, list) => list.length > MOST_EVENTS ? `${text}, the newest ${count(MOST_EVENTS)}` : text;
  return [
    el('section', { class: 'card' }, el('h2', {}, title('Faults and warnings', faults)),
        faults.length ? table('faults', faults) : el('p', { class: 'none' }, 'None.')),
    el('details', { class: 'card pad' }, el('summary', {}, title(`All ${count(events.length)} events`, events)), table('events', events)),
    el('details', { class: 'card pad' }, el('summary', {}, 'Job file, with every value filled in'),
        el('pre', { id: 'job-file' }, data.yaml)),
  ];
}

document.title = `${data.name} · Sluice report`;
const ledger = result?.ledger;
const tables = [drawTime(), drawLineage(), ledger ? card('Ledger', drawLedger({
  ledger: { ...ledger, tokens_generated: result.tokens_generated, tokens_trained: result.tokens_trained },
  final: true,
})) : null, drawStaleness()].filter((node) => node !== null);
const half = Math.ceil(tables.length / 2);
document.getElementById('main').replaceChildren(
    ...drawHead(), ...drawBanners(), drawTiles(), drawPlots(),
    el('div', { class: 'pair' }, el('div', { class: 'stack' }, tables.slice(0, half)),
        el('div', { class: 'stack' }, tables.slice(half))),
    el('div', { class: 'stack' }, drawEvents()));
