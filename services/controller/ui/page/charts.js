// Curves as SVG, drawn from lists of numbers in which null means that a step has no value.

const SVG = 'http://www.w3.org/2000/svg';
const PAD = { left: 44, right: 8, top: 8, bottom: 20 };  // Room for the labels, in pixels.

export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

export function formatNumber(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return '–';
  const size = Math.abs(value);
  if (size >= 1e9) return trim(value / 1e9) + 'G';
  if (size >= 1e6) return trim(value / 1e6) + 'M';
  if (size >= 1e4) return trim(value / 1e3) + 'k';
  if (size >= 100 || Number.isInteger(value)) return String(Math.round(value));
  if (size >= 0.01) return trim(value);
  return size === 0 ? '0' : value.toExponential(1);
}

function trim(value) {
  return value.toPrecision(3).replace(/\.?0+$/, '');
}

// Divides the steps into at most `count` stretches, and gives each series its mean, least and
// largest value in each of them.
function condense(steps, series, count) {
  const stretches = Math.min(count, steps.length);
  const out = { first: [], last: [], series: series.map(() => ({ mean: [], low: [], high: [] })) };
  for (let i = 0; i < stretches; ++i) {
    const begin = Math.floor(i * steps.length / stretches);
    const end = Math.floor((i + 1) * steps.length / stretches);
    out.first.push(steps[begin]);
    out.last.push(steps[end - 1]);
    series.forEach((one, s) => {
      let sum = 0, n = 0, low = Infinity, high = -Infinity;
      for (let j = begin; j < end; ++j) {
        const value = one.values[j];
        if (value === null || value === undefined) continue;
        sum += value;
        ++n;
        low = Math.min(low, value);
        high = Math.max(high, value);
      }
      const into = out.series[s];
      into.mean.push(n ? sum / n : null);
      into.low.push(n ? low : null);
      into.high.push(n ? high : null);
    });
  }
  return out;
}

// A round number of about the size of `rough`.
function roundStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 2.5, 5, 10].find((m) => m * power >= rough) * power;
}

// Where the axis begins and ends, and its ticks.
function axis(low, high, fromZero) {
  if (!(low <= high)) return null;
  if (fromZero) low = Math.min(0, low);
  if (high - low < 1e-12) {
    const around = Math.abs(high) || 1;
    high += around / 2;
    low -= fromZero && low >= 0 ? 0 : around / 2;
    if (fromZero) low = Math.min(0, low);
  }
  const step = roundStep((high - low) / 3);
  const first = Math.floor(low / step), last = Math.ceil(high / step);
  const ticks = [];
  for (let i = first; i <= last; ++i) ticks.push(i * step);
  return { low: first * step, high: last * step, ticks };
}

// Joins the points; a missing one interrupts the line.
function linePath(values, x, y) {
  let path = '', open = false;
  values.forEach((value, i) => {
    if (value === null) {
      open = false;
      return;
    }
    path += `${open ? 'L' : 'M'}${x(i).toFixed(1)} ${y(value).toFixed(1)}`;
    open = true;
  });
  return path;
}

function bandPath(low, high, x, y) {
  const places = low.map((_, i) => i).filter((i) => low[i] !== null && high[i] !== null);
  if (places.length < 2) return '';
  const point = (i, value) => `${x(i).toFixed(1)} ${y(value).toFixed(1)}`;
  return 'M' + places.map((i) => point(i, high[i])).join('L') + 'L' +
      places.reverse().map((i) => point(i, low[i])).join('L') + 'Z';
}

// A figure with a title, the newest value and a drawing that follows its width. draw() takes
//   steps:   the numbers of the steps
//   series:  [{name, values}], drawn as lines with the range of the values, or stacked
//   bound:   a value that must not be passed, or null
export class Chart {
  constructor({ title, unit = '', stacked = false, fromZero = false, format = formatNumber }) {
    this.stacked = stacked;
    this.fromZero = fromZero || stacked;
    this.format = format;
    this.node = document.createElement('figure');
    this.node.className = 'card';
    const caption = document.createElement('figcaption');
    const name = document.createElement('span');
    name.textContent = title;
    const units = document.createElement('span');
    units.className = 'unit';
    units.textContent = unit;
    this.latest = document.createElement('output');
    caption.append(name, units, this.latest);
    this.plot = svg('svg', { role: 'img', 'aria-label': title });
    this.legend = document.createElement('div');
    this.legend.className = 'legend';
    this.tip = document.createElement('div');
    this.tip.className = 'tip';
    this.tip.hidden = true;
    this.node.append(caption, this.plot, this.legend, this.tip);
    this.plot.addEventListener('pointermove', (event) => this.point(event));
    this.plot.addEventListener('pointerleave', () => this.leave());
    new ResizeObserver(() => this.redraw()).observe(this.plot);
  }

  draw(data) {
    this.data = data;
    this.redraw();
  }

  redraw() {
    const width = this.plot.clientWidth, height = this.plot.clientHeight;
    if (!this.data || width < 80) return;
    const { steps, bound } = this.data;
    const series = this.data.series.filter((one) => one.values.some((v) => v !== null));
    this.plot.setAttribute('viewBox', `0 0 ${width} ${height}`);
    this.plot.replaceChildren();
    this.latest.textContent = '';
    this.drawLegend(series);
    this.shown = null;
    if (steps.length === 0 || series.length === 0) {
      this.plot.append(svg('text', { x: PAD.left, y: height / 2 }, 'no steps yet'));
      return;
    }

    const room = width - PAD.left - PAD.right;
    const points = condense(steps, series, Math.max(2, Math.floor(room / (this.stacked ? 5 : 3))));
    const layers = this.stacked ? this.stack(points) : points.series;
    const values = layers.flatMap((one) => [...one.low, ...one.high]).filter((v) => v !== null);
    if (bound !== null && bound !== undefined) values.push(bound * 1.1);  // Some room above it.
    const scale = axis(Math.min(...values), Math.max(...values), this.fromZero);
    const count = points.first.length;
    const x = (i) => PAD.left + (count === 1 ? 0.5 : i / (count - 1)) * room;
    const y = (v) => PAD.top + (scale.high - v) / (scale.high - scale.low) *
        (height - PAD.top - PAD.bottom);

    for (const tick of scale.ticks) {
      this.plot.append(svg('path', { class: 'grid', d: `M${PAD.left} ${y(tick)}H${width - PAD.right}` }),
          svg('text', { x: PAD.left - 6, y: y(tick) + 4, 'text-anchor': 'end' }, this.format(tick)));
    }
    this.plot.append(
        svg('text', { x: PAD.left, y: height - 4 }, `step ${steps[0]}`),
        svg('text', { x: width - PAD.right, y: height - 4, 'text-anchor': 'end' },
            String(steps[steps.length - 1])));

    layers.forEach((one, s) => {
      if (this.stacked) {
        this.plot.append(svg('path', { class: `area f${s}`, d: bandPath(one.low, one.high, x, y) }));
        return;
      }
      this.plot.append(svg('path', { class: `band f${s}`, d: bandPath(one.low, one.high, x, y) }),
          svg('path', { class: `curve k${s}`, d: linePath(one.mean, x, y) }));
      if (count === 1 && one.mean[0] !== null)
        this.plot.append(svg('circle', { class: `f${s}`, r: 3, cx: x(0), cy: y(one.mean[0]) }));
    });
    if (bound !== null && bound !== undefined)
      this.plot.append(svg('path', { class: 'bound', d: `M${PAD.left} ${y(bound)}H${width - PAD.right}` }));

    const newest = this.stacked
        ? points.series.reduce((sum, one) => sum + (one.mean[count - 1] ?? 0), 0)
        : series[0].values.findLast((v) => v !== null && v !== undefined);
    this.latest.textContent = this.format(newest);
    this.cross = svg('path', { class: 'cross', d: '' });
    this.plot.append(this.cross);
    this.shown = { points, series, x, count, height };
    if (this.at !== undefined) this.showTip();
  }

  // Puts each series on top of the ones before it.
  stack(points) {
    const sums = points.first.map(() => 0);
    return points.series.map((one) => {
      const low = [...sums];
      one.mean.forEach((value, i) => { sums[i] += value ?? 0; });
      return { low, high: [...sums], mean: one.mean };
    });
  }

  drawLegend(series) {
    this.legend.replaceChildren();
    if (series.length < 2) return;
    series.forEach((one, s) => {
      const entry = document.createElement('span');
      const mark = document.createElement('i');
      mark.className = `b${s}`;
      entry.append(mark, one.name);
      this.legend.append(entry);
    });
  }

  point(event) {
    this.at = event.clientX - this.plot.getBoundingClientRect().left;
    this.showTip();
  }

  leave() {
    this.at = undefined;
    this.tip.hidden = true;
    if (this.cross) this.cross.setAttribute('d', '');
  }

  showTip() {
    if (!this.shown) return;
    const { points, series, x, count, height } = this.shown;
    let best = 0;
    for (let i = 1; i < count; ++i) {
      if (Math.abs(x(i) - this.at) < Math.abs(x(best) - this.at)) best = i;
    }
    this.cross.setAttribute('d', `M${x(best)} ${PAD.top}V${height - PAD.bottom}`);
    const first = points.first[best], last = points.last[best];
    const line = (name, value) => {
      const row = document.createElement('div');
      const label = document.createElement('span'), number = document.createElement('b');
      label.textContent = name;
      number.textContent = value;
      row.append(label, number);
      return row;
    };
    this.tip.replaceChildren(line(first === last ? `step ${first}` : `steps ${first}–${last}`, ''),
        ...series.map((one, s) => line(one.name, this.format(points.series[s].mean[best]))));
    this.tip.hidden = false;
    const right = x(best) > this.plot.clientWidth / 2;
    this.tip.style.left = right ? '' : `${x(best) + 28}px`;
    this.tip.style.right = right ? `${this.plot.clientWidth - x(best) + 28}px` : '';
  }
}

// The small curve of a row.
export function sparkline(values) {
  const node = svg('svg', { class: 'spark', viewBox: '0 0 120 28', preserveAspectRatio: 'none', 'aria-hidden': 'true' });
  if (!values || values.length < 2) return node;
  const low = Math.min(...values), range = Math.max(...values) - low || 1;
  const x = (i) => 1 + i / (values.length - 1) * 118;
  const y = (v) => 26 - (v - low) / range * 24;
  node.append(svg('path', { d: linePath(values, x, y) }));
  return node;
}
