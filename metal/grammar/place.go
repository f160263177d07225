package grammar

import (
	"encoding/binary"
	"slices"
	"strings"
)

// place is a schema and where it stands.
type place struct {
	of value // bool or *members
	at *spot
	// own is a schema of ours that applies too; it stands in no document.
	own bool
}

// spot is a keyword, name or number within an object or list that stands elsewhere; nil is the
// whole document. It is written out for an error only: the pointers of all schemas of a
// document, each with the names on its way, may take a thousand times its bytes.
type spot struct {
	in   *spot
	step string
}

// under is a spot within another.
func (at *spot) under(step string) *spot { return &spot{at, step} }

// pointer is the JSON pointer of a spot.
func (at *spot) pointer() string {
	var steps []string
	escape := strings.NewReplacer("~", "~0", "/", "~1")
	for ; at != nil; at = at.in {
		steps = append(steps, "/"+escape.Replace(at.step))
	}
	slices.Reverse(steps)
	return strings.Join(steps, "")
}

// Numbers of places that are not objects of a schema: those that allow no value, and those
// that are no schema, which are refused.
const (
	neverNumber = -1
	wrongNumber = -2
)

// number identifies a schema within its document.
func (p place) number() int64 {
	switch of := p.of.(type) {
	case *members:
		return of.offset
	case bool:
		return neverNumber
	}
	return wrongNumber
}

// goal is schemas that all hold.
type goal []place

// distinct is a goal without repetitions and the schema true, and its key: goals of the same
// schemas have the same.
func (g goal) distinct() (goal, string, error) {
	var keep goal
	numbers := make([]int64, 0, min(len(g), maxGoal))
	for _, p := range g {
		n := p.number()
		if p.of == true || slices.Contains(numbers, n) {
			continue
		}
		if len(keep) == maxGoal {
			return nil, "", tooLarge("schemas that apply to one value", maxGoal)
		}
		keep, numbers = append(keep, p), append(numbers, n)
	}
	slices.Sort(numbers)
	var key []byte
	for _, n := range numbers {
		key = binary.AppendVarint(key, n)
	}
	return keep, string(key), nil
}
