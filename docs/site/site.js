// The search and the choice of colours. The pages work without this file: "All pages" lists everything.
(() => {
  'use strict';
  const up = document.currentScript.dataset.up;
  const root = document.documentElement;
  const stored = () => { try { return localStorage.getItem('weir-theme'); } catch { return null; } };
  if (stored()) root.dataset.theme = stored();

  let loading = null;
  const load = () => (loading ||= new Promise((resolve) => {
    // A script and not fetch(), which browsers refuse for file: URLs.
    const script = document.createElement('script');
    script.src = `${up}/search-index.js`;
    script.onload = () => resolve(window.weirSearchIndex.map((row) => [...row, `${row[1]} ${row[2]}`.toLowerCase(), row[3].toLowerCase()]));
    document.head.append(script);
  }));

  const find = (rows, query) => {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    const found = [];
    for (const row of rows) {
      const [, , title, , names, text] = row;
      let score = 0;
      for (const word of words) {
        const inTitle = title.toLowerCase() === word ? 40 : title.toLowerCase().startsWith(word) ? 20 : names.includes(word) ? 10 : 0;
        const inText = text.includes(word) ? 2 : 0;
        if (!inTitle && !inText) { score = 0; break; }
        score += inTitle + inText;
      }
      if (score) found.push([score, row]);
    }
    return found.sort((a, b) => b[0] - a[0]).slice(0, 40).map((item) => item[1]);
  };

  const excerpt = (row, word) => {
    const at = Math.max(0, row[5].indexOf(word));
    const start = Math.max(0, at - 60);
    const element = document.createElement('small');
    const text = row[3];
    element.append((start ? '… ' : '') + text.slice(start, at));
    if (word && row[5].includes(word)) {
      const mark = document.createElement('mark');
      mark.append(text.slice(at, at + word.length));
      element.append(mark, text.slice(at + word.length, at + 120));
    } else element.append(text.slice(at, at + 120));
    return element;
  };

  document.addEventListener('DOMContentLoaded', () => {
    const form = document.querySelector('form.search');
    const input = form.querySelector('input');
    const results = document.querySelector('.results');
    form.hidden = false;

    const show = async () => {
      const query = input.value.trim();
      results.hidden = query.length < 2;
      if (results.hidden) return;
      const rows = find(await load(), query);
      const list = document.createElement('ol');
      for (const row of rows) {
        const item = document.createElement('li');
        const link = document.createElement('a');
        link.href = `${up}/${row[0]}`;
        link.append(row[1] === row[2] ? row[1] : `${row[1]}: ${row[2]}`);
        item.append(link, excerpt(row, query.toLowerCase().split(/\s+/)[0]));
        list.append(item);
      }
      results.replaceChildren(rows.length ? list : `Nothing contains "${query}".`);
    };
    // A link to a search: index.html?q=words
    input.value = new URLSearchParams(location.search).get('q') || '';
    if (input.value) show();
    input.addEventListener('focus', load);
    input.addEventListener('input', show);
    form.addEventListener('submit', async (event) => {
      event.preventDefault();
      await show();
      results.querySelector('a')?.click();
    });
    results.addEventListener('click', () => { results.hidden = true; });
    document.addEventListener('keydown', (event) => {
      if (event.key === '/' && !/^(INPUT|TEXTAREA)$/.test(document.activeElement.tagName)) {
        event.preventDefault();
        input.focus();
      } else if (event.key === 'Escape') results.hidden = true;
      else if ((event.key === 'ArrowDown' || event.key === 'ArrowUp') && !results.hidden) {
        const links = [...results.querySelectorAll('a')];
        const at = links.indexOf(document.activeElement) + (event.key === 'ArrowDown' ? 1 : -1);
        event.preventDefault();
        (at < 0 ? input : links[Math.min(at, links.length - 1)])?.focus();
      }
    });

    const button = document.querySelector('button.theme');
    const isDark = () => (root.dataset.theme || (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light')) === 'dark';
    const label = () => { button.textContent = isDark() ? 'Light' : 'Dark'; };
    button.hidden = false;
    label();
    button.addEventListener('click', () => {
      root.dataset.theme = isDark() ? 'light' : 'dark';
      try { localStorage.setItem('weir-theme', root.dataset.theme); } catch { /* private windows */ }
      label();
    });
    document.querySelector('nav.pages [aria-current]')?.scrollIntoView({ block: 'nearest' });
  });
})();
