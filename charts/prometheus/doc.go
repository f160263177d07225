// Package prometheus tests the alerts and dashboards that the chart installs,
// with Prometheus' own parser and query engine.
//
// It owns two files of series in testdata: alerts.yaml has, for each alert,
// series under which it fires and series under which it does not; fleet.yaml
// has what a small fleet exposes, over which every query of a dashboard has to
// show something. That the programs expose series of these names is
// TestTheWholeSystem's to show, in test/system.
//
// It is a module of its own, so that the operator's module does not depend on
// the Prometheus server.
//
// Start reading at TestAlertsFireOverTheirSeries.
package prometheus
