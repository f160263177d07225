package front

import (
	"bytes"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"strconv"

	"metalfleet.dev/metalfleet/api/openai"
)

// listBuffer is how much of a list is in memory as JSON while it is written.
const listBuffer = 16 << 10

// WriteList writes a response with status 200 that contains a list, entry by entry: a
// client that reads slowly makes the server hold one buffer, or one large entry, not the list.
// Entries may be JSON already, as json.RawMessage, or functions that encode them. frame is the
// response with an empty list, which must be its first. A short response has a
// Content-Length. An error that wraps ErrClientGone means that writing had begun.
func WriteList[T any](w http.ResponseWriter, frame any, entries iter.Seq[T]) error {
	whole, err := openai.Marshal(frame)
	if err != nil {
		return err
	}
	before, after, found := bytes.Cut(whole, []byte("[]"))
	if !found {
		return fmt.Errorf("write %T: it has no empty list", frame)
	}
	out := append(make([]byte, 0, listBuffer), before...)
	out = append(out, '[')
	separator, began := "", false
	for e := range entries {
		one, err := encode(e)
		if err != nil && began {
			return Gone(err) // the client sees that the response is not complete
		}
		if err != nil {
			return err
		}
		out = append(out, separator...)
		if separator = ","; len(out)+len(one) < listBuffer {
			out = append(out, one...)
			continue
		}
		if !began {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusOK)
			began = true
		}
		if _, err := w.Write(out); err != nil {
			return Gone(err)
		}
		if out = out[:0]; len(one) < listBuffer {
			out = append(out, one...)
		} else if _, err := w.Write(one); err != nil { // the buffer would keep it until the end
			return Gone(err)
		}
	}
	out = append(append(out, ']'), after...)
	if !began {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(out)))
		w.WriteHeader(http.StatusOK)
	}
	if _, err := w.Write(out); err != nil {
		return Gone(err)
	}
	return nil
}

// encode returns an entry as JSON.
func encode(entry any) ([]byte, error) {
	switch e := entry.(type) {
	case json.RawMessage:
		return e, nil
	case func() ([]byte, error):
		return e()
	}
	return openai.Marshal(entry)
}
