// Package jinja renders chat templates: the part of the Jinja language that
// they use, with Python's values.
//
// It owns the language: lexer with white space control as transformers sets it
// (trim_blocks and lstrip_blocks on), parser, evaluator, filters, tests,
// ordered dictionaries, Python's way to print and compare values. The
// reference is jinja2's ImmutableSandboxedEnvironment with transformers'
// additions (tojson, raise_exception, strftime_now, loop controls,
// generation blocks); nothing here reaches outside the template's own values.
//
// It refuses what it does not know, by name and line: tags, filters, tests and
// functions. Every render is bounded in steps, bytes and depth, so that a
// hostile template ends with ErrLimit.
//
// Start reading at Parse and Template.Render.
package jinja
