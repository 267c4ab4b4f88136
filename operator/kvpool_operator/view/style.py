"""How the page looks: one sheet inside it, light and dark as the reader's browser says."""

STYLE = """
:root { color-scheme: light dark; }
body { font: 14px/1.5 system-ui, sans-serif; margin: 1.5rem auto; max-width: 78rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; margin: .5rem 0; }
th, td { border-bottom: 1px solid #8884; padding: .25rem .75rem .25rem 0; text-align: left; vertical-align: top; }
td:last-child { overflow-wrap: anywhere; }
th { font-size: .75rem; font-weight: 600; opacity: .7; }
td { font-variant-numeric: tabular-nums; }
tr.bad td:nth-child(2) { color: #c5221f; font-weight: 600; } tr.good td:nth-child(2) { color: #188038; }
progress { width: 7rem; }
svg { display: block; max-width: 720px; width: 100%; font-size: 11px; fill: currentColor; }
.grid { stroke: currentColor; stroke-opacity: .2; } .axis { text-anchor: middle; } .end { text-anchor: end; }
.span { fill: #4285f4; fill-opacity: .45; } .mark { stroke: currentColor; stroke-width: 2; }
polyline { fill: none; stroke-width: 2; }
.line0 { stroke: #4285f4; } .line1 { stroke: #e8710a; } .name0 { color: #4285f4; } .name1 { color: #e8710a; }
"""
