package engine

import (
	"slices"

	"metalfleet.dev/metalfleet/metal/sample"
)

// untold are log-probabilities of tokens whose text was not shown yet: a
// character is not whole, or may belong to a stop string. What is told then adds
// up to the text that is shown, and nothing tells of a stop string.
type untold struct {
	waiting []unshown
	// decoded bytes of text came of the answer so far, shown of them were shown.
	decoded, shown int
}

// unshown is a token that has no text before the byte at.
type unshown struct {
	at     int
	ranked sample.Ranked
}

// add takes a token that brought so many bytes of text; nil where nobody wants to
// know how likely it was.
func (u *untold) add(ranked *sample.Ranked, bytes int) {
	if ranked != nil {
		u.waiting = append(u.waiting, unshown{u.decoded, *ranked})
	}
	u.decodes(bytes)
}

// decodes takes note of text of tokens that were added before.
func (u *untold) decodes(bytes int) { u.decoded += bytes }

// drop forgets the tokens that brought no text: they are of a call.
func (u *untold) drop() {
	u.waiting = slices.DeleteFunc(u.waiting, func(w unshown) bool { return w.at >= u.decoded })
}

// shows takes note that so many more bytes are shown, and returns the tokens
// whose text begins in what is.
func (u *untold) shows(bytes int) []sample.Ranked {
	u.shown += bytes
	n := 0
	for n < len(u.waiting) && u.waiting[n].at < u.shown {
		n++
	}
	return u.take(n)
}

// all returns the rest: the answer is over and was not cut.
func (u *untold) all() []sample.Ranked { return u.take(len(u.waiting)) }

func (u *untold) take(n int) (out []sample.Ranked) {
	for _, w := range u.waiting[:n] {
		out = append(out, w.ranked)
	}
	u.waiting = append(u.waiting[:0], u.waiting[n:]...)
	return out
}
