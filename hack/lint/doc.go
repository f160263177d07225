// Package lint turns the rules of the house into tests: the import law of the
// architecture, package comments, the length of functions, tests that skip,
// scripts that parse, paths of somebody's machine, and the agreement of the
// versions in the go.mod files.
//
// It owns those rules and nothing else; style that gofmt, go vet or
// staticcheck can judge is left to them. It reads sources only, so it takes a
// second and needs no build.
//
// Each rule has a fixture under testdata that breaks it: a rule that cannot
// fail is none. Start reading at law.
package lint
