"""What the page of parity adds to the look of `explain`: verdicts, and heat from inside the limit to far past it."""

STYLE = """
:root { --h0: #eef6f1; --h1: #d3ebdd; --h2: #a9d8bd; --h3: #f8d9a0; --h4: #ef9a6b; --h5: #c2402b;
  --on-pass: #17402b; --on-warm: #57300a; --on-hot: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --h0: #17231c; --h1: #1b3a29; --h2: #23553a; --h3: #6b4d14; --h4: #9c4a1f;
  --h5: #d14a34; --on-pass: #b9e8cd; --on-warm: #ffe3b0; --on-hot: #ffffff; } }
.hero { display: flex; flex-wrap: wrap; align-items: center; gap: .4rem 1rem; margin-top: .2rem; }
.stamp { border-radius: 10px; padding: .2rem .9rem; font-size: 1.15rem; font-weight: 750; letter-spacing: .04em; }
.sides { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(22rem, 100%), 1fr)); gap: 0 1.25rem; }
.side h2 { display: flex; align-items: baseline; gap: .6rem; flex-wrap: wrap; }
.letter { display: inline-grid; place-items: center; width: 1.5rem; height: 1.5rem; border-radius: 50%;
  font-size: .82rem; font-weight: 700; background: var(--faint); color: var(--ink); flex: none; }
.runs { margin-top: .8rem; }
.runs li { padding: .6rem 0; border-top: 1px solid var(--line); }
.runs .what { justify-content: space-between; }
.why { margin-top: .3rem; font-size: .92rem; overflow-wrap: anywhere; }
.offenders td { white-space: nowrap; vertical-align: middle; font-variant-numeric: tabular-nums; }
.offenders td:last-child { width: 34%; min-width: 9rem; }
.bar { display: flex; align-items: center; gap: .5rem; }
.bar i { display: block; height: 10px; border-radius: 5px; background: var(--h5); min-width: 4px; }
.bar i.fine { background: var(--h2); }
.heat { border-collapse: separate; border-spacing: 2px; width: auto; margin-top: .7rem; font-size: .8rem; }
.heat th, .heat td { border: 0; padding: 0; }
.heat thead th { color: var(--soft); font-weight: 500; text-align: center; padding: 0 .3rem .1rem; }
.heat tbody th { text-align: left; padding-right: .8rem; font-weight: 600; color: var(--ink); vertical-align: middle; }
.heat thead td { min-width: 8.5rem; text-align: left; color: var(--soft); height: auto; }
.heat tbody th small { display: block; font-weight: 400; color: var(--soft); max-width: 22rem; white-space: normal; }
.heat td { min-width: 3.1rem; height: 2rem; text-align: center; vertical-align: middle; border-radius: 5px;
  font-variant-numeric: tabular-nums; }
.heat td.all { min-width: 3.6rem; font-weight: 700; }
.heat td.gap, .heat th.gap { min-width: 1.1rem; background: none; }
.heat tr.parts th { color: var(--no); }
.h0, .h1, .h2 { color: var(--on-pass); } .h3 { color: var(--on-warm); } .h4 { color: var(--on-warm); }
.h5 { color: var(--on-hot); }
.h0 { background: var(--h0); } .h1 { background: var(--h1); } .h2 { background: var(--h2); }
.h3 { background: var(--h3); } .h4 { background: var(--h4); } .h5 { background: var(--h5); }
.legend { display: flex; flex-wrap: wrap; gap: .3rem .9rem; margin-top: .6rem; font-size: .8rem; color: var(--soft); }
.legend span { display: inline-flex; align-items: center; gap: .35rem; }
.legend i { width: 1.1rem; height: .8rem; border-radius: 3px; display: inline-block; }
h3 { font-size: .98rem; margin-top: 1.2rem; }
.differ td:not(:first-child) { font-variant-numeric: tabular-nums; }
@media (prefers-color-scheme: dark) { .h4 { color: var(--on-hot); } }
"""
