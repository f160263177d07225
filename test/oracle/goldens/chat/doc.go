// Package chat compares metal/chat/jinja with what jinja2 rendered.
//
// compare.py renders every template with jinja2 and writes one line per case; the
// test (build tag oracle) renders the same cases, prints figures for each group of
// templates and fails for a difference without an explanation (explained_test.go).
package chat
