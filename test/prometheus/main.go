// Command prometheus shows that the chart's dashboards and alerts say
// something true: it scrapes a running metalfleet as a Prometheus does, runs
// each query of each dashboard over what it recorded, and draws the panels.
// make docs-install runs it beside the story of test/e2e and puts what it draws
// into docs/dashboards.md.
//
// Scrapes, storage, PromQL and alerts are Prometheus' own code, linked as a
// library; Grafana's part is ours: the dashboard's file, its variables, legends
// and units. It owns the verdict on a query, and refuses one with an error, one
// that selects series nobody exposed, and one that shows nothing without being
// on the list of those that may (-expect). It refuses what it does not know: a
// panel's type, a unit, a variable. It looks for no targets: they are given.
//
//	prometheus -targets FILE -rules FILE -dashboards DIR -expect FILE -data DIR -out DIR < NOTES
//
// It says "recording" once every target has answered. Each line of its
// standard input is a note, drawn where it came; it records until that ends.
//
// It has a module of its own so that the operator's module never carries
// Prometheus' server. The version is the newest whose whole graph of modules
// the Go proxy holds: v0.316.0 asks for a Nomad client that it does not.
//
// Start reading at run, then judge.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// options is what the command line says.
type options struct {
	targets, rules, dashboards, expect string
	data, out                          string
	interval                           time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.targets, "targets", "", "`file` of what to scrape: groups of targets with labels, as Prometheus' file_sd has them, in JSON")
	flag.StringVar(&o.rules, "rules", "", "`file` with the chart's groups of rules")
	flag.StringVar(&o.dashboards, "dashboards", "", "`folder` of the chart's dashboards")
	flag.StringVar(&o.expect, "expect", "", "`file` that says what the queries show, where that is not simply something")
	flag.StringVar(&o.data, "data", "", "empty `folder` for the samples")
	flag.StringVar(&o.out, "out", "", "`folder` to write dashboards.md and dashboards/ into")
	flag.DurationVar(&o.interval, "interval", time.Second, "time between two scrapes of a target")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "prometheus:", err)
		os.Exit(1)
	}
}

// run records, judges and writes. Everything that is given is read first: a
// file that is wrong should not be found after the story.
func run(ctx context.Context, o options, notes io.Reader, said io.Writer) error {
	if o.targets == "" || o.rules == "" || o.dashboards == "" || o.expect == "" || o.data == "" || o.out == "" {
		return errors.New("-targets, -rules, -dashboards, -expect, -data and -out are all needed")
	}
	targets, err := readTargets(o.targets)
	if err != nil {
		return err
	}
	dashboards, err := readDashboards(o.dashboards)
	if err != nil {
		return err
	}
	alerts, err := readAlerts(o.rules)
	if err != nil {
		return err
	}
	expected, err := readExpectations(o.expect)
	if err != nil {
		return err
	}
	r, err := record(ctx, recorder{targets: targets, dir: o.data, interval: o.interval, notes: notes, said: said})
	if err != nil {
		return err
	}
	defer r.close()
	seen, err := judge(ctx, r, dashboards, alerts, expected)
	if err != nil {
		return err
	}
	return write(o.out, r, seen)
}
