// Package docs holds the documents, and the reasons that troubleshooting.md
// explains, for programs that tell a user what to do next.
//
// It owns the text and refuses to have a second one: what a program says of a
// reason is what the document says. Its test keeps documents and code together:
// every condition reason is explained, every link and every make target exists.
//
// Start reading at Explain.
package docs

import (
	_ "embed" // troubleshooting.md
	"regexp"
	"strings"
)

//go:embed troubleshooting.md
var troubleshooting string

// Explanation is one row of troubleshooting.md.
type Explanation struct {
	// Meaning of the reason.
	Meaning string
	// Next step of a person; empty where there is none to take.
	Next string
}

var row = regexp.MustCompile("(?m)^\\| `([A-Z][A-Za-z]+)` \\| ([^|]{10,}) \\| ([^|]{4,}) \\|$")

// Explain says what the reason of a condition means and what to do; ok is false
// for one that the document does not know.
func Explain(reason string) (e Explanation, ok bool) {
	for _, m := range row.FindAllStringSubmatch(troubleshooting, -1) {
		if m[1] != reason {
			continue
		}
		e = Explanation{Meaning: strings.TrimSpace(m[2]), Next: strings.TrimSpace(m[3])}
		if e.Next == "none" {
			e.Next = ""
		}
		return e, true
	}
	return e, false
}
