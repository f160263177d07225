// Package jinja renders chat templates: jinja2 3.1.6 as far as a prompt may use
// it, with Python's values.
//
// It owns the language: lexer with white space control as transformers sets it
// (trim_blocks and lstrip_blocks on), parser, evaluator, every filter and test
// of jinja2 but two, ordered dictionaries, integers of any size up to Python's
// 4,300 digits, Python's way to print, format and compare values. The reference
// is jinja2's ImmutableSandboxedEnvironment with the additions of transformers
// 5.23.0 (tojson, raise_exception, strftime_now, namespace, dict, loop controls,
// generation blocks); test/oracle/goldens/chat compares with it. What is lazy there is
// lazy here. Nothing reaches outside the template's own values, and no value
// can be changed.
//
// It refuses by name and line what it does not know, and what has no place in
// a prompt: other files (include, import, from, extends, block), chance (random,
// lipsum), web pages (autoescape, urlize), bytes (encode, translate), and to
// print where a value lies in memory. Sources and renders are bounded; the
// ErrLimit of a hostile template says by which Bound.
//
// Start reading at Parse and Template.Render.
package jinja
