"""How the page of `explain` looks: light and dark by the reader's own setting, from a phone's width up."""

STYLE = """
:root { color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #171a21; --soft: #586174; --line: #e1e5ec; --faint: #e9ecf1;
  --encoder: #0b7a75; --decoder: #4a51c9; --cross: #b4520b; --recurrent: #9c3587;
  --yes: #17734a; --yes-back: #e2f4ea; --no: #a3341f; --no-back: #fbeae6; }
@media (prefers-color-scheme: dark) { :root {
  --page: #101318; --card: #181c23; --ink: #e9ecf2; --soft: #9ea8ba; --line: #2a303b; --faint: #262c36;
  --encoder: #45c2b8; --decoder: #99a1ff; --cross: #f2a765; --recurrent: #e78fd4;
  --yes: #6bd6a1; --yes-back: #14301f; --no: #ff9d88; --no-back: #381c16; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main { max-width: 66rem; margin: 0 auto; padding: 2.5rem 1.25rem 3rem; }
h1, h2, h3, p, ul, ol, dl, dd { margin: 0; padding: 0; }
ul, ol { list-style: none; }
h1 { font-size: clamp(1.5rem, 4vw, 2.1rem); line-height: 1.2; letter-spacing: -.015em; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; letter-spacing: -.005em; }
code { font: .86em ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
.brand { color: var(--soft); font-size: .8rem; font-weight: 600; letter-spacing: .08em; text-transform: uppercase; }
.lead { margin-top: .7rem; font-size: 1.13rem; max-width: 46rem; }
.soft { color: var(--soft); font-size: .88rem; }
.pills { display: flex; flex-wrap: wrap; gap: .45rem; margin-top: 1.1rem; }
.pills li { background: var(--card); border: 1px solid var(--line); border-radius: 99px; padding: .15rem .75rem;
  font-size: .85rem; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 14px; padding: 1.35rem 1.5rem;
  margin-top: 1.25rem; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(24rem, 100%), 1fr)); gap: 0 1.25rem; }
.encoder { --type: var(--encoder); } .decoder { --type: var(--decoder); }
.cross { --type: var(--cross); } .recurrent { --type: var(--recurrent); }
.strip { display: flex; gap: 3px; margin: 1rem 0 .35rem; height: 26px; align-items: flex-end; }
.strip i { flex: 1 1 0; min-width: 2px; max-width: 44px; height: 100%; background: var(--type); border-radius: 4px; }
.strip i.narrow { height: 48%; opacity: .75; }
.layers > li { display: grid; grid-template-columns: 104px 1fr; gap: .35rem 1.25rem; padding: 1.2rem 0;
  border-top: 1px solid var(--line); align-items: start; }
.layers > li:first-child { margin-top: 1rem; }
.layers > li:last-child { padding-bottom: .2rem; }
.mask { width: 104px; height: 104px; display: block; }
.seen { fill: var(--type); } .unseen { fill: var(--faint); }
.scale { color: var(--soft); font-size: .7rem; margin-top: .3rem; white-space: nowrap; }
.what { display: flex; flex-wrap: wrap; align-items: center; gap: .3rem .7rem; }
.place { font-weight: 650; }
.badge { color: var(--type); border: 1.5px solid var(--type); border-radius: 7px; padding: 0 .5rem; font-size: .78rem;
  font-weight: 650; letter-spacing: .02em; line-height: 1.65; }
.numbers { display: flex; flex-wrap: wrap; gap: .15rem 1.5rem; margin: .45rem 0 .15rem; }
.numbers dt { color: var(--soft); font-size: .78rem; }
.numbers dd { font-size: .95rem; font-variant-numeric: tabular-nums; }
details { margin-top: .4rem; }
summary { cursor: pointer; color: var(--soft); font-size: .86rem; width: fit-content; border-radius: 4px; }
summary:hover { color: var(--ink); }
:focus-visible { outline: 2px solid var(--decoder); outline-offset: 2px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; margin-top: .5rem; width: 100%; }
th, td { text-align: left; padding: .25rem .9rem .25rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; overflow-wrap: anywhere; }
th { color: var(--soft); font-weight: 500; white-space: nowrap; }
.names { display: flex; flex-wrap: wrap; gap: .3rem; margin-top: .5rem; }
.names li { background: var(--faint); border-radius: 6px; padding: 0 .5rem; font-size: .85rem;
  overflow-wrap: anywhere; }
.state { font-size: 1.25rem; font-weight: 650; margin-top: .6rem; overflow-wrap: anywhere; }
.rules { margin-top: 1rem; display: grid; gap: .3rem; }
.rules li { display: grid; grid-template-columns: 2.4rem 1fr auto; gap: .2rem .6rem; padding: .4rem .7rem;
  border: 1px solid transparent; border-radius: 9px; font-size: .92rem; color: var(--soft); align-items: baseline; }
.rules .match { color: var(--ink); border-color: var(--yes); background: var(--yes-back); }
.rules b { font-variant-numeric: tabular-nums; }
.rules span:last-child { font-size: .8rem; }
.rules .match span:last-child { color: var(--yes); font-weight: 650; }
.prefill { margin-top: 1rem; padding-top: .9rem; border-top: 1px solid var(--line); font-size: .92rem; }
.prefill b { font-weight: 600; margin-right: .4rem; }
.tasks { margin-top: .4rem; }
.tasks li { padding: .75rem 0; border-bottom: 1px solid var(--line); }
.tasks li:last-child { border-bottom: 0; padding-bottom: 0; }
.verdict { border-radius: 99px; padding: .05rem .65rem; font-size: .78rem; font-weight: 650;
  width: fit-content; }
.yes { color: var(--yes); background: var(--yes-back); } .no { color: var(--no); background: var(--no-back); }
.plain { color: var(--soft); background: var(--faint); }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(27rem, 100%), 1fr)); gap: 0 2.5rem;
  margin-top: .7rem; }
.facts div { display: grid; grid-template-columns: 9.5rem 1fr; gap: .2rem 1rem; padding: .5rem 0;
  border-bottom: 1px solid var(--line); }
.facts dt { color: var(--soft); font-size: .9rem; } .facts dd { font-size: .93rem; overflow-wrap: anywhere; }
@media (max-width: 34rem) { main { padding: 1.5rem .9rem 2rem; } .card { padding: 1.1rem 1rem; }
  .layers > li { grid-template-columns: 1fr; } .facts div { grid-template-columns: 1fr; gap: 0; } }
@media print { body { background: none; } .card { break-inside: avoid; } }
"""
