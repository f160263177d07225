// Package grammar checks structured output against others' judgement: a model that
// answers at random writes answers under random schemas, which Python's jsonschema
// validates, and the official JSON Schema test suite runs against the matcher.
//
// The test fails if one answer is no JSON or not valid, if an instance that the suite
// calls invalid is accepted, or if fewer than a stated share of the valid ones are. It
// carries the build tag oracle. schemas.go makes the random schemas and answers.go the
// answers; the benchmark of masks uses both.
package grammar
