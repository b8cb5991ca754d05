"""The style sheet of a report, for light and dark screens and for paper."""

from __future__ import annotations

from typing import Final

__all__ = ["STYLE"]

STYLE: Final = """
:root { --ink: #1c2430; --faint: #667085; --line: #e3e7ee; --paper: #ffffff; --ground: #f5f7fa;
  --c0: #3b6fb6; --c1: #e8a13a; --c2: #c4513f; --c3: #8a94a6; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --faint: #9aa5b5; --line: #303949; --paper: #1b222d;
  --ground: #12171f; --c0: #6ea0e6; --c1: #f0b65c; --c2: #e87a68; --c3: #8a94a6; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 960px; margin: 0 auto; padding: 24px 20px 60px; }
h1 { font-size: 22px; margin: 8px 0 0; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 0 0 12px; }
h3 { font-size: 15px; margin: 16px 0 6px; }
.when { color: var(--faint); margin: 2px 0 18px; }
section { background: var(--paper); border: 1px solid var(--line); border-radius: 10px; padding: 18px 20px;
  margin-bottom: 16px; overflow-x: auto; break-inside: avoid; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(165px, 1fr)); gap: 12px; margin: 0; }
.cards div { border: 1px solid var(--line); border-radius: 8px; padding: 8px 12px; }
dt { color: var(--faint); font-size: 12.5px; }
dd { margin: 0; font-size: 16px; font-weight: 600; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; margin-top: 8px; }
th { color: var(--faint); font-weight: 600; white-space: nowrap; }
th, td { padding: 5px 14px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td { max-width: 340px; overflow-wrap: break-word; }
details { margin-top: 10px; }
summary { cursor: pointer; color: var(--faint); }
.legend span { margin-right: 18px; color: var(--faint); font-size: 13px; }
.legend { margin: 0 0 8px; }
svg text { font: 12px system-ui, sans-serif; fill: var(--faint); }
svg text.label { fill: var(--ink); }
.grid { stroke: var(--line); stroke-width: 1; }
.c0 { fill: var(--c0); } .c1 { fill: var(--c1); } .c2 { fill: var(--c2); } .c3 { fill: var(--c3); }
.dot { fill-opacity: 0.75; stroke: var(--paper); stroke-width: 1; }
.area { fill-opacity: 0.8; }
"""
