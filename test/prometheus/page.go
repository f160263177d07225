package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// folder of the pictures, beside the page.
const folder = "dashboards"

// head of the page.
const head = `# Dashboards and alerts

The chart's Grafana dashboards and alert rules (` + "`monitoring.*`" + ` of its values), as they look over a real run. ` + "`make docs-install`" + `
writes this page: while the story of ` + "`docs/install.md`" + ` goes on in a one-node Kubernetes with two declared Macs, Prometheus'
own code scrapes operators, gateways and agents every %s, then runs each query below and draws its answer. The run fails
where a query has an error, where it selects series that no target exposes, where it gives no value, and where it shows
nothing but zero without being listed in ` + "`test/e2e/dashboards.yaml`" + ` with the reason.

An agent tells its figures on the Mac's loopback alone (` + "`agent --metrics 127.0.0.1:9443`" + `): they have no lock. Put in front of it
what you trust there, such as a reverse proxy that asks for a certificate, and give each target the Mac's name as ` + "`instance`" + `,
which the panels show. Operators and gateways are found by the chart's ServiceMonitors; where the link of a Mac is cut, its
lines have a gap.

A dashed line in a picture is the beginning of a step:

`

// write puts pages and pictures into a folder, whose older pictures go.
func write(out string, r *recording, s *seen) error {
	pictures := filepath.Join(out, folder)
	if err := os.RemoveAll(pictures); err != nil {
		return err
	}
	if err := os.MkdirAll(pictures, 0o755); err != nil {
		return err
	}
	for _, d := range s.dashboards {
		for _, p := range d.panels {
			svg, err := p.picture(r)
			if err != nil {
				return fmt.Errorf("picture of %q: %w", p.Title, err)
			}
			if err := os.WriteFile(filepath.Join(pictures, d.picture(p)), svg, 0o644); err != nil {
				return err
			}
		}
	}
	return os.WriteFile(filepath.Join(out, folder+".md"), []byte(page(r, s)), 0o644)
}

// picture is the name of a panel's file.
func (d shown) picture(p shownPanel) string { return d.name + "-" + slug(p.Title) + ".svg" }

// page is all of it in words.
func page(r *recording, s *seen) string {
	var b strings.Builder
	fmt.Fprintf(&b, head, inWords(r.interval))
	b.WriteString("| line | seconds | step |\n|---|---|---|\n")
	for i, n := range r.notes {
		fmt.Fprintf(&b, "| %d | %.1f | %s |\n", i+1, n.at.Sub(r.from).Seconds(), n.text)
	}
	for _, d := range s.dashboards {
		fmt.Fprintf(&b, "\n## %s\n", d.Title)
		for _, p := range d.panels {
			fmt.Fprintf(&b, "\n### %s\n\n", p.Title)
			if p.Description != "" {
				fmt.Fprintf(&b, "%s\n\n", p.Description)
			}
			fmt.Fprintf(&b, "![%s](%s/%s)\n\n```promql\n", p.Title, folder, d.picture(p))
			for _, a := range p.answers {
				fmt.Fprintf(&b, "%s\n", a.Expr)
			}
			b.WriteString("```\n")
		}
	}
	b.WriteString("\n## Alerts\n\nEach was evaluated at every scrape; the last column is what it came to in this run.\n\n")
	b.WriteString("| alert | for | severity | says | in this run |\n|---|---|---|---|---|\n")
	for _, a := range s.alerts {
		fmt.Fprintf(&b, "| `%s`: `%s` | %s | %s | %s | %s |\n", a.Alert, cell(a.Expr), a.For, a.Labels["severity"], cell(a.Annotations["summary"]), a.state)
	}
	return b.String()
}

// inWords is an interval as a sentence has it.
func inWords(d time.Duration) string {
	if d == time.Second {
		return "second"
	}
	return d.String()
}

// cell is text inside a table.
func cell(s string) string {
	return strings.ReplaceAll(strings.TrimSpace(strings.ReplaceAll(s, "\n", " ")), "|", `\|`)
}
