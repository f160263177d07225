//go:build oracle

package chat

import (
	"strings"
)

// difference is a reason why the two sides differ that we stand by.
type difference struct {
	why string
	// says is what our error says; where it does not, the reason does not hold.
	says []string
}

// differences lists what metal/chat/jinja does otherwise than the reference.
// In each the reference gives text, and we refuse by name.
func differences() []difference {
	return []difference{
		{why: "a value would print as where it lies in memory, another place each time", says: []string{"would contain a memory address"}},
		{why: "a tag, filter, function or method that has no place in a prompt", says: []string{"is not supported"}},
		{why: "a constant that cannot be sliced: the reference folds it to Undefined, but fails for a variable of that value", says: []string{"cannot be sliced"}},
		{why: "an argument of a wrong type that the reference would look at later, or never", says: []string{
			"the width of ", "the size of ", "the count of ", "the length of ", "invalid base of ", "the indent of ", "truncate requires a str"}},
	}
}

// explain names the reason for a difference; empty where there is none.
func explain(got, want outcome) string {
	if got.Error == nil || want.Text == nil {
		return ""
	}
	for _, d := range differences() {
		for _, words := range d.says {
			if strings.Contains(*got.Error, words) {
				return d.why
			}
		}
	}
	return ""
}
