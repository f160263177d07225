// Package planted says that a rule which cannot fail is none: nobody wants it. It
// tells
// whoever reads it what it holds, and tells one thing apart from another.
package planted

import "strings"

// wishes are what somebody wants. See below: a file below the model root is a
// file below docs/models. A value below zero is none, and so is one below.
var wishes = []string{
	"the model is told to go, once another comes about",
	`a raw literal
that goes on behind another line, behind the NAT and behind a reverse proxy`,
	"the request goes to the gateway; nothing is left behind",
	"one of `nobody` in a code span",
}

// poke is called with go build, and "x" is not one of a, b.
func poke(giver int, taker struct {
	Field string `json:"nobody"`
}) {
	for _, heardLast := range wishes {
		neighbours := strings.Fields(heardLast) // not one of
		_ = neighbours                          // them, and so many
	}
}
