package toolcall

import (
	"encoding/json"
	"fmt"
)

// Shape is how a format writes calls, for whoever holds a model to it. It is one of
// the ways that the format's parser reads.
type Shape struct {
	// Begin and End stand around a call, Between between two.
	Begin, End, Between string
	// Many says that calls may follow one another.
	Many bool
	key  string
}

// Shape of a format whose arguments are JSON from end to end; ok is false for the
// others, and for those whose marks are control tokens of the vocabulary.
func (f Format) Shape() (s Shape, ok bool) {
	switch f {
	case Hermes:
		return Shape{Begin: openCall, End: closeCall, Between: "\n", Many: true, key: "arguments"}, true
	case Llama:
		return Shape{key: "parameters"}, true
	}
	return Shape{}, false
}

// Held lists the formats that have a shape, for people.
func Held() string { return "Qwen and Hermes, Llama 3" }

// Around are the texts before and behind the arguments of a function.
func (s Shape) Around(name string) (before, behind string) {
	quoted, err := json.Marshal(name)
	if err != nil {
		panic(fmt.Sprintf("a string cannot be encoded as JSON: %v", err))
	}
	return fmt.Sprintf(`{"name": %s, "%s": `, quoted, s.key), "}"
}

// Schema of a function's arguments; one that declares none takes none.
func (t Tools) Schema(name string) string {
	if p := t[name].whole; len(p) > 0 && string(p) != "null" {
		return string(p)
	}
	return `{"type":"object","additionalProperties":false}`
}
