// Package lint checks rules of this repository as tests: the import law of the
// architecture, package comments, the length of functions, tests that skip,
// scripts that parse, folders of one machine, equal versions in the go.mod files,
// plain English, and the subjects of commits.
//
// Plain English is a ratchet: phrases.txt lists phrases and names of our old
// dialect, and dialect.txt how many of them each package and document still has.
// The numbers only fall.
//
// It owns those rules and nothing else; style that gofmt, go vet or staticcheck
// can judge is left to them. It reads sources only, so it takes seconds and needs
// no build.
//
// Each rule has a fixture under testdata that breaks it: a rule that cannot fail
// is none. Start reading at law and at ratchet.
package lint
